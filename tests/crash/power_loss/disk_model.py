"""Models what a disk may hold after a power loss: all that was synced, and a random part of the rest.

The rules are those of POSIX, without the stronger guarantees of any file system: a write reaches the disk at the latest
when a sync of its file that began after it has ended, and at any time before that, each sector of 512 bytes on its own.
A name reaches the disk at the latest when its folder is synced, and at any time before that, but not before earlier
names of the same folder.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from power_loss.write_stream import Event, Kind

SECTOR: Final = 512
NEVER: Final = 1 << 62
_NAMES: Final = frozenset((Kind.MADE, Kind.MOVED, Kind.SWAPPED, Kind.GONE, Kind.FOLDER, Kind.NO_FOLDER))


class Change(msgspec.Struct, frozen=True):
    """A change of a file's bytes or length, or of a name.

    Attributes:
        at: Its place in the stream.
        safe: The place in the stream from which on it is on the disk.
        place: The number of the file, which is unique although inodes are reused, or the path of the folder.
        name: The name with which the file was made; "" for a change of a name.
        event: The event in the stream.
    """

    at: int
    safe: int
    place: int | Path
    event: Event
    name: str = ""

    @property
    def of_frames(self) -> bool:
        """Whether it is a change of a file that holds frames."""
        return self.name.startswith("frames.")

    @property
    def of_data(self) -> bool:
        """Whether it is a change of a file that holds pages, or what is known of them."""
        return self.of_frames or self.name == "data.mdb"

    def pending(self, cut: int) -> bool:
        """Returns whether the disk may or may not have it if the power fails just before the stream's event `cut`."""
        return self.at < cut <= self.safe


class Survived(msgspec.Struct, frozen=True):
    """The part of a change that has reached the disk: the numbers of its sectors, None for all of them."""

    change: Change
    sectors: frozenset[int] | None = None


ChooseContents = Callable[[Sequence[Change]], Sequence[Survived]]
"""Decides over the pending changes of bytes and lengths, in order; changes that it omits are lost."""
ChooseNames = Callable[[Sequence[Change]], int]
"""Decides how many of a folder's pending changes of names have reached the disk, from the first on."""


class History:
    """All changes of a stream, and when each is safe. `folder` is the path of the tier's folder in the stream."""

    def __init__(self, events: Sequence[Event], folder: Path) -> None:
        self.events = events
        self.folder = folder
        self.contents: list[Change] = []
        self.names: list[Change] = []
        self._collect(_sync_ends(events))

    def _collect(self, ends: Mapping[tuple[int, int], list[tuple[int, int]]]) -> None:
        numbers: dict[int, int] = {}
        names: dict[int, str] = {}
        incarnation: dict[int, int] = defaultdict(int)
        for at, event in enumerate(self.events):
            if event.kind in (Kind.MADE, Kind.FOLDER):
                numbers[event.inode], names[event.inode] = at, event.path.name
                incarnation[event.inode] += 1
            if event.kind in (Kind.WRITE, Kind.LENGTH):
                safe = _safe_from(ends[event.inode, incarnation[event.inode]], at)
                self.contents.append(Change(at, safe, numbers[event.inode], event, names[event.inode]))
            if event.kind in _NAMES:
                self.names.append(Change(at, NEVER, self._folder_of(event), event))
        self.names = [self._with_safety(change) for change in self.names]
        self._moved = _what_moved(self.names)

    def unsynced(self, cut: int) -> bool:
        """Returns whether a byte of any data file may be lost then."""
        return any(change.pending(cut) and change.of_data for change in self.contents)

    def changed(self, since: int, cut: int) -> bool:
        """Returns whether a data file was changed between two places of the stream."""
        return any(since < change.at < cut and change.of_data for change in self.contents)

    def _folder_of(self, event: Event) -> Path:
        return (event.other if event.kind is Kind.MOVED else event.path).parent

    def _with_safety(self, change: Change) -> Change:
        syncs = _folder_syncs(self.events, change.place)
        return msgspec.structs.replace(change, safe=_safe_from(syncs, change.at))

    def boundaries(self) -> list[int]:
        """Returns the places in the stream where a sync has just ended, or is about to end."""
        after = [at + 1 for at, event in enumerate(self.events) if event.kind is Kind.SYNCED]
        return after + [at for at, event in enumerate(self.events) if event.kind is Kind.SYNCED]

    def left(self, cut: int, choose: ChooseContents, names: ChooseNames) -> dict[Path, bytes | None]:
        """Returns the content of the disk if the power fails just before the event `cut`.

        The keys are paths relative to the folder, the values are the bytes of files, None for folders.
        """
        survived = {one.change.at: one for one in choose([one for one in self.contents if one.pending(cut)])}
        files: dict[int, bytearray] = defaultdict(bytearray)
        for change in self.contents:
            if change.at >= cut:
                break
            one = survived.get(change.at) if change.pending(cut) else Survived(change)
            if one is not None:
                assert isinstance(change.place, int)
                _apply(files[change.place], one)
        tree = self._tree(cut, names)
        return {path: None if number is None else bytes(files[number]) for path, number in tree.items()}

    def _tree(self, cut: int, choose: ChooseNames) -> dict[Path, int | None]:
        lost = set(self._lost_names(cut, choose))
        tree: dict[Path, int | None] = {}
        for change in self.names:
            if change.at < cut and change.at not in lost:
                _rename(tree, change, self.folder, self._moved)
        return {path: number for path, number in tree.items() if _is_in(tree, path)}

    def _lost_names(self, cut: int, choose: ChooseNames) -> Iterator[int]:
        folders: dict[int | Path, list[Change]] = defaultdict(list)
        for change in self.names:
            if change.pending(cut):
                folders[change.place].append(change)
        for pending in folders.values():
            yield from (change.at for change in pending[choose(pending) :])


def _sync_ends(events: Sequence[Event]) -> Mapping[tuple[int, int], list[tuple[int, int]]]:
    """Returns where the syncs of each file began and ended; the key is the inode and the number of its reuses."""
    uses: dict[int, int] = defaultdict(int)
    begun: dict[tuple[int, int], int] = {}
    ends: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for at, event in enumerate(events):
        if event.kind in (Kind.MADE, Kind.FOLDER):
            uses[event.inode] += 1
        elif event.kind is Kind.SYNCING:
            begun[event.thread, event.inode] = at
        elif event.kind is Kind.SYNCED:
            ends[event.inode, uses[event.inode]].append((begun[event.thread, event.inode], at))
    return ends


def _folder_syncs(events: Sequence[Event], folder: int | Path) -> list[tuple[int, int]]:
    begun: dict[int, int] = {}
    found = []
    for at, event in enumerate(events):
        if event.kind is Kind.SYNCING:
            begun[event.thread] = at
        elif event.kind is Kind.SYNCED and event.path == folder:
            found.append((begun[event.thread], at))
    return found


def _safe_from(syncs: Sequence[tuple[int, int]], at: int) -> int:
    return min((end for begin, end in syncs if begin > at), default=NEVER)


def _apply(file: bytearray, one: Survived) -> None:
    event = one.change.event
    if event.kind is Kind.LENGTH:
        del file[event.offset :]
        file.extend(bytes(event.offset - len(file)))
        return
    end = event.offset + len(event.data)
    file.extend(bytes(max(0, end - len(file))))  # the file may have its new length although sectors are lost
    for begin, stop in [(event.offset, end)] if one.sectors is None else _pieces(event.offset, end, one.sectors):
        file[begin:stop] = event.data[begin - event.offset : stop - event.offset]


def _pieces(begin: int, end: int, sectors: frozenset[int]) -> Iterator[tuple[int, int]]:
    for sector in sorted(sectors):
        yield max(begin, sector * SECTOR), min(end, (sector + 1) * SECTOR)


def sectors_of(change: Change) -> range:
    """Returns the sectors that a write touches, by their numbers in the file."""
    event = change.event
    return range(event.offset // SECTOR, -(-(event.offset + len(event.data)) // SECTOR))


def _what_moved(names: Sequence[Change]) -> dict[int, int]:
    """Returns the file that each rename moves: the new name may be on the disk although the old one never was."""
    tree: dict[Path, int] = {}
    moved = {}
    for change in names:
        event = change.event
        if event.kind is Kind.MADE:
            tree[event.path] = change.at
        elif event.kind is Kind.MOVED:
            moved[change.at] = tree[event.other] = tree.pop(event.path)
        elif event.kind is Kind.SWAPPED:
            tree[event.path], tree[event.other] = tree[event.other], tree[event.path]
    return moved


def _rename(tree: dict[Path, int | None], change: Change, root: Path, moved: Mapping[int, int]) -> None:
    """Applies one change of names."""
    event, path = change.event, change.event.path
    if path == root or not path.is_relative_to(root):
        return
    path = path.relative_to(root)
    match event.kind:
        case Kind.MADE:
            tree[path] = change.at
        case Kind.FOLDER:
            tree[path] = None
        case Kind.GONE | Kind.NO_FOLDER:
            tree.pop(path, None)
        case Kind.MOVED:
            tree.pop(path, None)
            tree[event.other.relative_to(root)] = moved[change.at]
        case Kind.SWAPPED:
            other = event.other.relative_to(root)
            tree[path], tree[other] = tree[other], tree[path]


def _is_in(tree: Mapping[Path, int | None], path: Path) -> bool:
    """Returns whether the parent folder exists."""
    return all(parent in tree or parent == Path() for parent in path.parents)
