"""Finds the kind of each page of an LMDB file. It walks the newest trees and trusts that they are intact."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import StrEnum
from typing import Final

import msgspec

from disk_stores import StoreKind

PAGE: Final = 4096
_HEAD: Final = 16
_META: Final = _HEAD + 24  # after magic, version, address and map size: two trees, the last page and the number
_TREE: Final = struct.Struct("<IHHQQQQQ")
_ENTRIES: Final = 32  # in a tree: after flags, depth and pages
_BRANCH, _LEAF = 1, 2
_BIG, _SUB = 1, 2


class Part(StrEnum):
    """The kinds of pages. SMALL: leaves of names and notes, and the tree of trees; SLOT: in a file of frames."""

    META = "meta"
    FRAMES_BRANCH = "branch of frames"
    FRAMES_LEAF = "leaf of frames"
    HEADERS_BRANCH = "branch of headers"
    HEADERS_LEAF = "leaf of headers"
    SMALL = "leaf of names and notes"
    FREE_LIST = "free list"
    VALUE_HEAD = "first page of a value"
    VALUE = "other page of a value"
    FREE = "free page"
    SLOT = "page of a file of frames"


_OF_VALUES: Final = {Part.FRAMES_BRANCH, Part.FRAMES_LEAF, Part.VALUE_HEAD, Part.VALUE}
PARTS: Final[dict[StoreKind, list[Part]]] = {
    "lmdb": [part for part in Part if part is not Part.SLOT],
    "files": [part for part in Part if part not in _OF_VALUES],
    "compressed": [part for part in Part if part not in _OF_VALUES],
}
"""The kinds of pages that each store has."""


class Node(msgspec.Struct, frozen=True):
    """A node of a leaf.

    `value` is its value, or the number of the page that holds it; `at` is the place of the value.
    """

    key: bytes
    flags: int
    size: int
    value: bytes
    at: int


class Anatomy:
    """The anatomy of a file at rest. `counted_at` is the place of the number of frames or records, in 8 bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.pages = dict.fromkeys(range(len(data) // PAGE), Part.FREE)
        self.pages[0] = self.pages[1] = Part.META
        meta = max((0, PAGE), key=lambda at: struct.unpack_from("<Q", data, at + _META + 2 * _TREE.size + 8)[0])
        self._walk(_root(data, meta + _META), Part.FREE_LIST, Part.FREE_LIST)
        main = list(self._walk_of(_root(data, meta + _META + _TREE.size), Part.SMALL, Part.SMALL))
        roots = {node.key: _root(node.value, 0) for node in main if node.flags & _SUB}
        counted = b"frames" if b"frames" in roots else b"pages"
        (self.counted_at,) = (node.at + _ENTRIES for node in main if node.key == counted)
        if b"frames" in roots:
            self._walk(roots[b"frames"], Part.FRAMES_BRANCH, Part.FRAMES_LEAF)
        self._walk(roots[b"pages"], Part.HEADERS_BRANCH, Part.HEADERS_LEAF)
        self._walk(roots[b"spaces"], Part.SMALL, Part.SMALL)
        self._walk(roots[b"about"], Part.SMALL, Part.SMALL)

    def of(self, part: Part) -> list[int]:
        """Returns the numbers of all pages of a kind."""
        return [number for number, its in self.pages.items() if its is part]

    def _walk(self, root: int, branch: Part, leaf: Part) -> None:
        for _ in self._walk_of(root, branch, leaf):
            pass

    def _walk_of(self, page: int, branch: Part, leaf: Part) -> Iterator[Node]:
        if page >= 1 << 48:
            return
        (flags,) = struct.unpack_from("<H", self._data, page * PAGE + 10)
        self.pages[page] = branch if flags & _BRANCH else leaf
        for node in self._nodes(page):
            if flags & _BRANCH:
                child = int.from_bytes(node.value, "little")
                yield from self._walk_of(child, branch, leaf)
            elif node.flags & _BIG:
                self._mark_value(int.from_bytes(node.value[:8], "little"), node.size, leaf)
            else:
                yield node

    def _mark_value(self, page: int, size: int, leaf: Part) -> None:
        for number in range(page, page + -(-(size + _HEAD) // PAGE)):
            self.pages[number] = Part.VALUE if number > page else Part.VALUE_HEAD
            if leaf is Part.FREE_LIST:
                self.pages[number] = Part.FREE_LIST

    def _nodes(self, page: int) -> Iterator[Node]:
        at = page * PAGE
        flags, lower = struct.unpack_from("<HH", self._data, at + 10)
        for place in range(at + _HEAD, at + lower, 2):
            node = at + struct.unpack_from("<H", self._data, place)[0]
            low, high, node_flags, key_size = struct.unpack_from("<HHHH", self._data, node)
            key = self._data[node + 8 : node + 8 + key_size]
            if flags & _BRANCH:
                child = low | high << 16 | node_flags << 32
                yield Node(key, 0, 0, child.to_bytes(8, "little"), node)
            else:
                size = low | high << 16
                begin = node + 8 + key_size
                value = self._data[begin : begin + (8 if node_flags & _BIG else size)]
                yield Node(key, node_flags, size, value, begin)


def _root(data: bytes, at: int) -> int:
    root: int = _TREE.unpack_from(data, at)[-1]
    return root
