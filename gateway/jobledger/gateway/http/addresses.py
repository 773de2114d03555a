"""Addresses with words in braces, found by the parts of a path. Pure."""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class _Node(Generic[T]):
    def __init__(self) -> None:
        self.words: dict[str, _Node[T]] = {}
        self.any: _Node[T] | None = None
        self.value: T | None = None
        self.names: list[str] = []


class Addresses(Generic[T]):
    """What is at each address, as `/v1/jobs/{queue}/{id}`; where several match, words come before braces."""

    def __init__(self) -> None:
        """Begin with none."""
        self._root: _Node[T] = _Node()

    def add(self, path: str, value: T) -> None:
        """Put something at an address where nothing is."""
        node, names = self._root, []
        for part in path.split("/"):
            if part.startswith("{"):
                names.append(part[1:-1])
                node.any = node.any or _Node()
                node = node.any
            else:
                node = node.words.setdefault(part, _Node())
        assert node.value is None, f"{path} is there already"
        node.value, node.names = value, names

    def find(self, path: str) -> tuple[T, dict[str, str]] | None:
        """Return what is at the address of a path, with the parts that stand for braces; None where nothing is."""
        parts = path.split("/")
        node, depth = self._root, 0
        taken: tuple[str, ...] = ()
        # Where a word and braces both match, the braces are tried after the word: the node, the depth behind it, and the
        # parts that stand for braces so far.
        others: list[tuple[_Node[T], int, tuple[str, ...]]] = []
        while True:
            if depth < len(parts):
                part = parts[depth]
                depth += 1
                word, other = node.words.get(part), node.any if part else None
                if word is not None:
                    if other is not None:
                        others.append((other, depth, (*taken, part)))
                    node = word
                    continue
                if other is not None:
                    node, taken = other, (*taken, part)
                    continue
            elif node.value is not None:
                return node.value, dict(zip(node.names, taken, strict=True))
            if not others:
                return None
            node, depth, taken = others.pop()
