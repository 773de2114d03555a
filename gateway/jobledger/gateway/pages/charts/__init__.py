"""Charts as inline SVG: pure, without `style=`, which the pages' content security policy refuses.

Widths are percentages and heights are pixels, so that a chart fills its place and its texts keep their size. Colours
come from classes. Every mark has a `<title>` for pointers and for readers of the page's source.
"""
