"""The root of a Merkle tree over a stream of leaves, in memory that grows with the logarithm of their number. Pure.

The tree is that of Certificate Transparency, so any implementation of it agrees: a leaf is
`sha256(0x00 || value)`, a node `sha256(0x01 || left || right)`, and a tree of n leaves has its left part as large as
the greatest power of two below n. Source: RFC 9162, section 2.1.1.
"""

from __future__ import annotations

import hashlib
from typing import Final

_LEAF: Final = b"\x00"
_NODE: Final = b"\x01"


class MerkleTree:
    """Takes leaves in order; `root` may be asked for at any time."""

    def __init__(self) -> None:
        self._peaks: list[bytes] = []  # roots of whole subtrees, the largest first
        self.count = 0  #: leaves so far

    def add(self, value: bytes) -> None:
        """Take the next leaf."""
        node = hashlib.sha256(_LEAF + value).digest()
        self.count += 1
        full = self.count
        while not full & 1:  # as many subtrees are whole now as the count has zeros at its end
            node = hashlib.sha256(_NODE + self._peaks.pop() + node).digest()
            full >>= 1
        self._peaks.append(node)

    def root(self) -> bytes:
        """Return the root's 32 bytes; without leaves the hash of nothing."""
        if not self._peaks:
            return hashlib.sha256().digest()
        node = self._peaks[-1]
        for left in reversed(self._peaks[:-1]):
            node = hashlib.sha256(_NODE + left + node).digest()
        return node
