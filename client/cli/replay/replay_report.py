"""Defines the counts and the report of a replay."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec


class ReplayCounts(msgspec.Struct, kw_only=True):
    """The counts of clients, in pages unless the name says otherwise.

    Attributes:
        asked: Full blocks of the prompts.
        loaded: Loaded pages, including those with wrong content.
        from_disk: Those of them that were on disk when they were matched.
        wrong: Loaded pages with wrong content.
        stored: Pages that were stored.
        present: Pages that were present already.
        pending: Pages that another client was storing.
        refused: Pages that were rejected.
        left_out: Pages that were not worth their room (evict.policy).
        load_seconds: Seconds in Client.match() and load(), the sum of all clients.
        store_seconds: Seconds in Client.store(), the sum of all clients.
    """

    requests: int = 0
    prompt_tokens: int = 0
    asked: int = 0
    loaded: int = 0
    from_disk: int = 0
    wrong: int = 0
    stored: int = 0
    present: int = 0
    pending: int = 0
    refused: int = 0
    left_out: int = 0
    load_seconds: float = 0.0
    store_seconds: float = 0.0

    def add(self, other: ReplayCounts) -> None:
        """Adds other counts to these."""
        for field in self.__struct_fields__:
            setattr(self, field, getattr(self, field) + getattr(other, field))


class CounterDeltas(msgspec.Struct, frozen=True, kw_only=True):
    """Changes of the daemon's counters, in pages unless the name says otherwise.

    Attributes:
        evicted: Pages evicted from memory.
        disk_read: Pages read from disk.
        disk_read_bytes: Their bytes.
        disk_written: Pages written to disk.
        disk_written_bytes: Their bytes.
        disk_lost: Pages evicted before they were written.
    """

    evicted: int = 0
    disk_read: int = 0
    disk_read_bytes: int = 0
    disk_written: int = 0
    disk_written_bytes: int = 0
    disk_lost: int = 0


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a replay. With --json its fields are the keys.

    token_hit_ratio is the ratio of hit tokens to all prompt tokens, which include those of partial blocks; it is the
    sum of token_hit_ratio_memory and token_hit_ratio_disk. load_rate and store_rate are bytes a second of one client
    while it loads or stores. evictions and disk_* are the daemon's counters during the replay, also those that other
    clients caused; disk_pages_lost are pages that were evicted before they were written. disk_frames is the capacity of
    the disk.
    """

    requests: int
    prompt_tokens: int
    hit_tokens_memory: int
    hit_tokens_disk: int
    token_hit_ratio: float
    token_hit_ratio_memory: float
    token_hit_ratio_disk: float
    wrong_pages: int
    evictions: int
    seconds: float
    clients: int
    clients_died: int
    requests_per_second: float
    page_bytes: int
    pages_asked: int
    pages_loaded: int
    pages_loaded_disk: int
    pages_stored: int
    pages_present: int
    pages_pending: int
    pages_refused: int
    pages_left_out: int
    bytes_loaded: int
    bytes_stored: int
    load_rate: float
    store_rate: float
    disk_pages_read: int
    disk_bytes_read: int
    disk_pages_written: int
    disk_bytes_written: int
    disk_pages_lost: int
    disk_frames: int


class ReplayResult(msgspec.Struct, frozen=True, kw_only=True):
    """The raw result of a replay.

    Attributes:
        counts: The counts of all clients.
        counters: The changes of the daemon's counters.
        disk_frames: The capacity of the disk tier; 0 without one.
        seconds: The duration.
        clients: The number of clients.
        block_tokens: Tokens of a block.
        page_bytes: The size of a page.
        deaths: A sentence for each client that died.
    """

    counts: ReplayCounts
    counters: CounterDeltas
    disk_frames: int
    seconds: float
    clients: int
    block_tokens: int
    page_bytes: int
    deaths: list[str]

    def report(self) -> Report:
        """Returns the report."""
        counts, page = self.counts, self.page_bytes
        return Report(
            requests=counts.requests,
            prompt_tokens=counts.prompt_tokens,
            wrong_pages=counts.wrong,
            seconds=self.seconds,
            clients=self.clients,
            clients_died=len(self.deaths),
            requests_per_second=_over(counts.requests, self.seconds),
            page_bytes=page,
            pages_asked=counts.asked,
            pages_loaded=counts.loaded,
            pages_loaded_disk=counts.from_disk,
            pages_stored=counts.stored,
            pages_present=counts.present,
            pages_pending=counts.pending,
            pages_refused=counts.refused,
            pages_left_out=counts.left_out,
            bytes_loaded=counts.loaded * page,
            bytes_stored=counts.stored * page,
            load_rate=_over(counts.loaded * page, counts.load_seconds),
            store_rate=_over(counts.stored * page, counts.store_seconds),
            disk_frames=self.disk_frames,
            **self._hits(),
            **self._counters(),
        )

    def _hits(self) -> dict[str, Any]:
        all_tokens = self.counts.prompt_tokens
        disk = self.counts.from_disk * self.block_tokens
        memory = self.counts.loaded * self.block_tokens - disk
        return {
            "hit_tokens_memory": memory,
            "hit_tokens_disk": disk,
            "token_hit_ratio": _over(memory + disk, all_tokens),
            "token_hit_ratio_memory": _over(memory, all_tokens),
            "token_hit_ratio_disk": _over(disk, all_tokens),
        }

    def _counters(self) -> dict[str, Any]:
        return {
            "evictions": self.counters.evicted,
            "disk_pages_read": self.counters.disk_read,
            "disk_bytes_read": self.counters.disk_read_bytes,
            "disk_pages_written": self.counters.disk_written,
            "disk_bytes_written": self.counters.disk_written_bytes,
            "disk_pages_lost": self.counters.disk_lost,
        }


def _over(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


@contextmanager
def progress_bar(requests: int) -> Iterator[Callable[[int], None]]:
    """Shows a progress bar if stderr is a terminal. Yields a function that takes the number of replayed requests."""
    if not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("replay"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("replay", total=requests)
        yield lambda done: bar.update(task, completed=done)


def show(report: Report) -> None:
    """Prints the report as a table."""
    from rich.console import Console
    from rich.table import Table

    table = Table(show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for section in _sections(report):
        for name, value in section:
            table.add_row(name, value)
        table.add_section()
    Console().print(table)


def _sections(r: Report) -> list[list[tuple[str, str]]]:
    tokens, hits = max(r.prompt_tokens, 1), r.hit_tokens_memory + r.hit_tokens_disk
    return [
        [
            ("requests", f"{r.requests:,}"),
            ("prompt tokens", f"{r.prompt_tokens:,}"),
            ("hit in memory", f"{r.hit_tokens_memory:,} ({r.hit_tokens_memory / tokens:.2%})"),
            ("hit on disk", f"{r.hit_tokens_disk:,} ({r.hit_tokens_disk / tokens:.2%})"),
            ("hit in either", f"{hits:,} ({hits / tokens:.2%})"),
        ],
        [
            ("pages requested", f"{r.pages_asked:,} of {r.page_bytes:,} bytes"),
            ("loaded and verified", f"{r.pages_loaded:,} ({_size(r.bytes_loaded)}, {_size(r.load_rate)}/s)"),
            ("wrong content", f"{r.wrong_pages:,}"),
            ("stored", f"{r.pages_stored:,} ({_size(r.bytes_stored)}, {_size(r.store_rate)}/s)"),
            ("already present", f"{r.pages_present:,}"),
            ("pending in another client", f"{r.pages_pending:,}"),
            ("refused", f"{r.pages_refused:,}"),
            ("left out", f"{r.pages_left_out:,}"),
            ("evicted", f"{r.evictions:,}"),
        ],
        *_disk(r),
        [
            ("clients", f"{r.clients} ({r.clients_died} died)" if r.clients_died else f"{r.clients}"),
            ("seconds", f"{r.seconds:.1f} ({r.requests_per_second:,.0f} requests/s)"),
        ],
    ]


def _disk(r: Report) -> list[list[tuple[str, str]]]:
    """Returns the section of the disk, or no section if no disk was used."""
    section = [
        ("loaded from disk", f"{r.pages_loaded_disk:,}"),
        ("read from disk", f"{r.disk_pages_read:,} ({_size(r.disk_bytes_read)})"),
        ("written to disk", f"{r.disk_pages_written:,} ({_size(r.disk_bytes_written)})"),
        ("evicted unwritten", f"{r.disk_pages_lost:,}"),
    ]
    return [section] if r.disk_frames or r.disk_pages_written or r.disk_pages_read else []


def _size(nbytes: float) -> str:
    power = 0
    while nbytes >= 1024 and power < len(_UNITS) - 1:
        nbytes, power = nbytes / 1024, power + 1
    return f"{nbytes:.1f} {_UNITS[power]}" if power else f"{nbytes:.0f} B"
