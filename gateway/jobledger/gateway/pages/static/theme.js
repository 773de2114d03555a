// Light or dark as this person chose it; before the page is drawn, so that it does not flash.
{
  const chosen = localStorage.getItem("theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
}
