"""The state of a running cache as typed values, read out of shared memory without a word to the daemon.

The fields are the keys of `pagetier stats --json`: they are added to, never renamed. Counters run since the segments
were made, over restarts of the daemon. While the daemon works, two numbers may be a moment apart.
"""

from __future__ import annotations

import time
from typing import Any, TypeVar

import msgspec

from pagetier.daemon.disk.status import DiskReport, unpack
from pagetier.shm._core import Observer
from pagetier.shm.protocol import BUILD

_NS = 1_000_000_000
_LOOKS = 1000
_T = TypeVar("_T", bound=msgspec.Struct)


class PageTier(msgspec.Struct, frozen=True, kw_only=True):
    """Where pages live.

    cap: bytes that it may take; 0: this daemon has no such tier. used: bytes taken, in whole frames.
    pages, bytes: what it holds, pages that are being written among them. hits, misses: pages looked for, found or not;
    in memory by the first match of a request, on disk by reads.
    evictions, evicted_bytes: pages that left to make room. flushed: pages that were told to go.
    bytes_in, bytes_out: stored into it and loaded from it.
    """

    cap: int = 0
    used: int = 0
    pages: int = 0
    bytes: int = 0
    hits: int = 0
    misses: int = 0
    evictions: int = 0
    evicted_bytes: int = 0
    flushed: int = 0
    bytes_in: int = 0
    bytes_out: int = 0

    @property
    def hit_ratio(self) -> float | None:
        """Hits over pages looked for; None before the first."""
        looked_for = self.hits + self.misses
        return self.hits / looked_for if looked_for else None


class Tiers(msgspec.Struct, frozen=True, kw_only=True):
    """The tiers, nearest first."""

    memory: PageTier
    disk: PageTier = PageTier()


class NamespaceStats(msgspec.Struct, frozen=True, kw_only=True):
    """Pages that were computed alike. digest: hexadecimal; page_tokens: tokens of a page.

    pages, bytes: in memory; disk_pages, disk_bytes: on disk, in memory too or not.
    """

    label: str
    digest: str
    page_tokens: int
    pages: int
    bytes: int
    disk_pages: int = 0
    disk_bytes: int = 0


class ClientStats(msgspec.Struct, frozen=True, kw_only=True):
    """An attached client. A process may have several. pins, pinned_bytes: pages that it holds now, and their frames.

    lookups: requests that were looked for, each counted once; hits, misses: pages of their first matches. bounded:
    matches that ended at match.share, repeated ones among them; lost_pages: pages written in vain, as their reservation
    was gone.
    """

    slot: int
    pid: int
    uid: int
    name: str
    age_seconds: float
    pins: int
    pinned_bytes: int = 0
    lookups: int
    bounded: int = 0
    hits: int
    misses: int
    loaded_pages: int
    loaded_bytes: int
    stored_pages: int
    stored_bytes: int
    lost_pages: int


class LookupStats(msgspec.Struct, frozen=True, kw_only=True):
    """Requests that were looked for, and the tokens of the full pages of their prompts by the tier that gave them.

    A request is one lookup, however often it is matched, and each of its tokens is counted once. What an engine had in
    its own cache is not looked for.

    Attributes:
        lookups: requests.
        memory_tokens: tokens of pages that were found in memory.
        disk_tokens: tokens of pages that were found on disk alone, and were loaded. vLLM counts all that it loads
            from the first page on disk on.
        missed_tokens: all others, those among them that were on disk and did not come in time or were not waited for.
    """

    lookups: int
    memory_tokens: int
    disk_tokens: int
    missed_tokens: int


class StoreStats(msgspec.Struct, frozen=True, kw_only=True):
    """How requests for room were answered, in pages or parts of pages.

    writing: pages that are being written now. doomed: pages given up half-written, by expiry the `expired` among them.
    """

    writing: int
    granted: int
    present: int
    pending: int
    refused: int
    doomed: int
    expired: int


class DaemonStats(msgspec.Struct, frozen=True, kw_only=True):
    """The daemon and its index. segments: hexadecimal, another one when they are made anew.

    incarnation: daemons that these segments have seen. entries, free_entries: records of pages.
    departed: clients that left or died. adopted, dropped: pages that daemons took over, or could not.
    """

    build: str
    segments: str
    incarnation: int
    frame_bytes: int
    entries: int
    free_entries: int
    namespaces: int
    departed: int
    adopted: int
    dropped: int


class DiskWork(msgspec.Struct, frozen=True, kw_only=True):
    """What the disk tier did, in pages. written, read: moved; lost: left memory before they could be written.

    spared: not written, as the disk could not or the budget did not allow it; damaged: not what was written.
    """

    written: int
    read: int
    lost: int
    spared: int
    damaged: int


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """All of it. disk: how the disk tier is."""

    daemon: DaemonStats
    tiers: Tiers
    disk: DiskReport
    disk_work: DiskWork
    lookups: LookupStats
    stores: StoreStats
    namespaces: tuple[NamespaceStats, ...]
    clients: tuple[ClientStats, ...]


def take_snapshot(observer: Observer) -> Snapshot:
    """Looks once. Costs the observing process some milliseconds for a million pages, and the daemon nothing."""
    header, counts = observer.header(), observer.counts()
    report = _disk_report(observer)
    return Snapshot(
        daemon=_daemon(header),
        tiers=Tiers(memory=_memory(header, counts), disk=_disk(header, report)),
        disk=report,
        disk_work=_disk_work(header),
        lookups=_pick(LookupStats, counts),
        stores=_pick(StoreStats, header, writing=header["open_entries"]),
        namespaces=tuple(map(_namespace, observer.spaces())),
        clients=tuple(map(_client, observer.slots())),
    )


def _daemon(header: dict[str, int]) -> DaemonStats:
    return _pick(
        DaemonStats,
        header,
        build=BUILD,
        segments=f"{header['segments_id']:016x}",
        namespaces=header["spaces"],
        departed=header["deaths"],
    )


def _memory(header: dict[str, int], counts: dict[str, int]) -> PageTier:
    return PageTier(
        cap=header["arena_bytes"],
        used=header["used_frames"] * header["frame_bytes"],
        pages=header["pages"],
        bytes=header["bytes"],
        hits=counts["hit_pages"],
        misses=counts["miss_pages"],
        evictions=header["evicted"],
        evicted_bytes=header["evicted_bytes"],
        flushed=header["flushed"],
        bytes_in=counts["stored_bytes"],
        bytes_out=counts["loaded_bytes"],
    )


def _disk(header: dict[str, int], report: DiskReport) -> PageTier:
    return PageTier(
        cap=report.cap,
        used=header["disk_used_frames"] * header["frame_bytes"],
        pages=header["disk_pages"],
        bytes=header["disk_bytes"],
        hits=header["disk_read"],
        misses=header["disk_missed"],
        evictions=header["disk_evicted"],
        evicted_bytes=header["disk_evicted_bytes"],
        flushed=header["disk_flushed"],
        bytes_in=header["disk_written_bytes"],
        bytes_out=header["disk_read_bytes"],
    )


def _disk_work(header: dict[str, int]) -> DiskWork:
    return DiskWork(**{name: header[f"disk_{name}"] for name in DiskWork.__struct_fields__})


def _disk_report(observer: Observer) -> DiskReport:
    """What the disk tier says of itself; it changes about once a second."""
    for _ in range(_LOOKS):
        text = observer.disk_text()
        if text is not None:
            return unpack(text)
    return DiskReport()


def _namespace(space: dict[str, Any]) -> NamespaceStats:
    return _pick(NamespaceStats, space, label=space["name"], digest=space["digest"].hex())


def _client(slot: dict[str, Any]) -> ClientStats:
    counts = slot["counts"]
    age = max(0.0, (time.monotonic_ns() - slot["attached_ns"]) / _NS)
    return _pick(
        ClientStats, slot | counts, age_seconds=round(age, 3), hits=counts["hit_pages"], misses=counts["miss_pages"]
    )


def _pick(kind: type[_T], numbers: dict[str, Any], **more: Any) -> _T:
    """The fields of `kind` that have the same name in `numbers`, and `more`."""
    same = {name: numbers[name] for name in kind.__struct_fields__ if name not in more}
    return kind(**same, **more)
