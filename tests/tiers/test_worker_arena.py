"""Tests that the worker pins exactly the pages of a batch that are unchanged, until the batch is written."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from anonymous_segments import attach
from index_with_disk import FRAME, Place, ints, key, u32, u64
from pagetier.shm._core import KEY_BYTES, NO_ENTRY, Pins, Session, TierFlag
from pagetier.shm.page_rows import PageToWrite
from pagetier.tiers.worker.arena import WorkerArena

PAGES = 6
NO_SERIAL = 2**64 - 1


class CountedSession:
    """The session of a worker, which counts the calls that pin pages."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.calls = 0

    def repin(self, kind: type[Pins], context: object, entries: bytes, serials: bytes) -> Pins:
        self.calls += 1
        return self._session.repin(kind, context, entries, serials)

    def frames(self, entry: int) -> bytes:
        return self._session.frames(entry)


class Scene:
    """An index with pages in two namespaces, and the arena of a worker that is to write the pages."""

    def __init__(self) -> None:
        self.place = Place()
        self._lasting = self.place.space
        self._leaving = self.place.owner.space(b"l" * KEY_BYTES, "leaving", 16, 0, 0)
        index, locks, arena = map(os.dup, self.place.memory.descriptors)
        self.arena = WorkerArena((index, locks, arena), attach(self.place.owner, 2))
        self.session = CountedSession(self.arena._session)
        self.arena._session = self.session  # type: ignore[assignment]

    def store(self, pages: int, leaving: set[int]) -> tuple[bytes, bytes]:
        """Stores pages, some of which leave on drop(). Returns entries and serials for a write."""
        for page in range(pages):
            self.place.space = self._leaving if page in leaving else self._lasting
            self.place.store(f"page{page}")
        found = [self._identity(f"page{page}") for page in range(pages)]
        return b"".join(entry for entry, _ in found), b"".join(serial for _, serial in found)

    def drop(self) -> None:
        """Drops the leaving pages from memory."""
        self.place.owner.flush(self._leaving, TierFlag.BOTH)

    def flush(self) -> tuple[int, int]:
        """Drops all pages that are not pinned. Returns how many were dropped, and how many are pinned."""
        flushed = self.place.owner.flush(-1, TierFlag.BOTH)
        return flushed.dropped, flushed.kept

    def content(self, entry: bytes) -> bytes:
        """Returns the bytes in the frames of a pinned page."""
        return b"".join(self.arena.frames(ints(entry, 4)[0]))

    def _identity(self, name: str) -> tuple[bytes, bytes]:
        with self.place.session.match(Pins, None, key(name)) as pins:
            return pins.entries, pins.serials


@pytest.fixture
def scene() -> Iterator[Scene]:
    made = Scene()
    yield made
    assert made.place.sound()


def pages_of(entries: bytes, serials: bytes) -> list[PageToWrite]:
    """Returns the pages of a write with these entries and serials."""
    return [
        PageToWrite(b"", b"", FRAME, serial, 0, entry, 0, 0)
        for entry, serial in zip(ints(entries, 4), ints(serials, 8), strict=True)
    ]


def bytes_of(page: int) -> bytes:
    name = f"page{page}".encode()
    return (name * (FRAME // len(name))).ljust(FRAME, b"\0")


@pytest.mark.parametrize(
    ("pages", "gone"),
    [
        (PAGES, set()),
        (PAGES, {2}),
        (PAGES, {0}),
        (PAGES, {PAGES - 1}),
        (PAGES, {1, 2, 4}),
        (PAGES, set(range(PAGES))),
        (1, set()),
        (1, {0}),
        (0, set()),
    ],
)
def test_a_page_that_is_gone_leaves_the_others_of_its_batch_pinned(scene: Scene, pages: int, gone: set[int]) -> None:
    entries, serials = scene.store(pages, gone)
    scene.drop()
    with scene.arena.pinned(pages_of(entries, serials)) as unchanged:
        assert unchanged == [page not in gone for page in range(pages)]
        assert scene.flush() == (0, pages - len(gone)), "(dropped, pinned)"
        for page in set(range(pages)) - gone:
            assert scene.content(entries[4 * page : 4 * page + 4]) == bytes_of(page)
    assert scene.flush() == (pages - len(gone), 0), "pages are still pinned after the write"


@pytest.mark.parametrize(("gone", "calls"), [(set(), 1), ({2}, 2), ({1, 4}, 3)])
def test_a_batch_is_pinned_by_one_call_and_one_more_after_each_gap(scene: Scene, gone: set[int], calls: int) -> None:
    entries, serials = scene.store(PAGES, gone)
    scene.drop()
    with scene.arena.pinned(pages_of(entries, serials)):
        assert scene.session.calls == calls


def test_a_page_that_was_replaced_in_its_entry_is_not_pinned(scene: Scene) -> None:
    """The serial distinguishes the pages that one entry had, even with the same key and bytes."""
    entries, serials = scene.store(PAGES, {3})
    scene.drop()
    scene.place.store("page3")
    with scene.place.session.match(Pins, None, key("page3")) as pins:
        assert pins.entries == entries[12:16], "the test needs the same entry"
    with scene.arena.pinned(pages_of(entries, serials)) as unchanged:
        assert unchanged == [page != 3 for page in range(PAGES)]
        assert scene.flush() == (1, PAGES - 1)


def test_an_entry_outside_the_index_is_skipped(scene: Scene) -> None:
    entries, serials = scene.store(2, set())
    with_one_more = entries[:4] + u32(NO_ENTRY) + entries[4:]
    with scene.arena.pinned(pages_of(with_one_more, serials[:8] + u64(NO_SERIAL) + serials[8:])) as unchanged:
        assert unchanged == [True, False, True]


def test_a_failing_write_unpins_its_batch(scene: Scene) -> None:
    entries, serials = scene.store(PAGES, {2})
    scene.drop()
    with pytest.raises(OSError, match="full"), scene.arena.pinned(pages_of(entries, serials)):
        raise OSError("full")
    assert scene.flush() == (PAGES - 1, 0)
