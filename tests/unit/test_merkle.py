"""The Merkle tree agrees with RFC 9162, in roots published with Certificate Transparency and in its definition."""

from __future__ import annotations

import hashlib

from hypothesis import given
from hypothesis import strategies as st
from tests.support.tables import each_row

from jobledger.audit.seals.seals import MerkleTree

LEAVES = [
    bytes.fromhex(text)
    for text in (
        "",
        "00",
        "10",
        "2021",
        "3031",
        "40414243",
        "5051525354555657",
        "606162636465666768696a6b6c6d6e6f",
    )
]
# Source: the test vectors of the reference implementation of RFC 6962.
ROOTS = [
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]


def tree_of(values: list[bytes]) -> MerkleTree:
    tree = MerkleTree()
    for value in values:
        tree.add(value)
    return tree


def defined(values: list[bytes]) -> bytes:
    """The definition of RFC 9162, section 2.1.1, as it is written there."""
    if not values:
        return hashlib.sha256().digest()
    if len(values) == 1:
        return hashlib.sha256(b"\x00" + values[0]).digest()
    left = 1 << (len(values) - 1).bit_length() - 1
    return hashlib.sha256(b"\x01" + defined(values[:left]) + defined(values[left:])).digest()


@each_row("count", range(len(ROOTS)))
def test_roots_are_those_published(count: int) -> None:
    tree = tree_of(LEAVES[:count])
    assert tree.root().hex() == ROOTS[count]
    assert tree.count == count


@given(st.lists(st.binary(max_size=8), max_size=200))
def test_a_stream_of_leaves_has_the_root_of_the_definition(values: list[bytes]) -> None:
    assert tree_of(values).root() == defined(values)


def test_a_root_may_be_asked_for_on_the_way() -> None:
    tree = MerkleTree()
    for count, value in enumerate(LEAVES, start=1):
        tree.add(value)
        assert tree.root().hex() == ROOTS[count]
