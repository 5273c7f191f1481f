"""What a replay counts, and what it reports at the end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec


class ReplayCounts(msgspec.Struct, kw_only=True):
    """What clients did, in pages but where the name says else; two of them add up.

    asked: full blocks in the prompts. loaded: copied out, the wrong ones among them; from_disk: those of them that were
    on disk when they were looked for. load_seconds and store_seconds: spent in Client.match and
    load, and in Client.store, by all clients together.
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
    load_seconds: float = 0.0
    store_seconds: float = 0.0

    def add(self, other: ReplayCounts) -> None:
        """Adds what another counted to this one."""
        for field in self.__struct_fields__:
            setattr(self, field, getattr(self, field) + getattr(other, field))


class Deeds(msgspec.Struct, frozen=True, kw_only=True):
    """What a daemon did, by its own count, in pages but where the name says else. disk_lost: evicted unwritten."""

    evicted: int = 0
    disk_read: int = 0
    disk_read_bytes: int = 0
    disk_written: int = 0
    disk_written_bytes: int = 0
    disk_lost: int = 0


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a replay; with --json its fields are the keys.

    token_hit_ratio: hit tokens over all prompt tokens, those of partial blocks among them; it is the sum of those with
    _memory and _disk. *_rate: bytes a second of one client while it loads or stores. evictions and disk_*: by the
    daemon meanwhile, whoever caused it; disk_pages_lost: evicted before they could be written. disk_frames: the disk's
    room.
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


class ReplayRun(msgspec.Struct, frozen=True, kw_only=True):
    """How a replay went, before it is put into words. deaths: a sentence for each client that died."""

    tally: ReplayCounts
    deeds: Deeds
    disk_frames: int
    seconds: float
    clients: int
    block_tokens: int
    page_bytes: int
    deaths: list[str]

    def report(self) -> Report:
        """The numbers for people and programs."""
        tally, page = self.tally, self.page_bytes
        return Report(
            requests=tally.requests,
            prompt_tokens=tally.prompt_tokens,
            wrong_pages=tally.wrong,
            seconds=self.seconds,
            clients=self.clients,
            clients_died=len(self.deaths),
            requests_per_second=_over(tally.requests, self.seconds),
            page_bytes=page,
            pages_asked=tally.asked,
            pages_loaded=tally.loaded,
            pages_loaded_disk=tally.from_disk,
            pages_stored=tally.stored,
            pages_present=tally.present,
            pages_pending=tally.pending,
            pages_refused=tally.refused,
            bytes_loaded=tally.loaded * page,
            bytes_stored=tally.stored * page,
            load_rate=_over(tally.loaded * page, tally.load_seconds),
            store_rate=_over(tally.stored * page, tally.store_seconds),
            disk_frames=self.disk_frames,
            **self._hits(),
            **self._deeds(),
        )

    def _hits(self) -> dict[str, Any]:
        all_tokens = self.tally.prompt_tokens
        disk = self.tally.from_disk * self.block_tokens
        memory = self.tally.loaded * self.block_tokens - disk
        return {
            "hit_tokens_memory": memory,
            "hit_tokens_disk": disk,
            "token_hit_ratio": _over(memory + disk, all_tokens),
            "token_hit_ratio_memory": _over(memory, all_tokens),
            "token_hit_ratio_disk": _over(disk, all_tokens),
        }

    def _deeds(self) -> dict[str, Any]:
        return {
            "evictions": self.deeds.evicted,
            "disk_pages_read": self.deeds.disk_read,
            "disk_bytes_read": self.deeds.disk_read_bytes,
            "disk_pages_written": self.deeds.disk_written,
            "disk_bytes_written": self.deeds.disk_written_bytes,
            "disk_pages_lost": self.deeds.disk_lost,
        }


def _over(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


@contextmanager
def progress_bar(requests: int) -> Iterator[Callable[[int], None]]:
    """A bar on stderr where that is a terminal, else nothing. It is told how many requests are done."""
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
    """The table on stdout."""
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
            ("pages asked for", f"{r.pages_asked:,} of {r.page_bytes:,} bytes"),
            ("loaded and verified", f"{r.pages_loaded:,} ({_size(r.bytes_loaded)}, {_size(r.load_rate)}/s)"),
            ("wrong", f"{r.wrong_pages:,}"),
            ("stored", f"{r.pages_stored:,} ({_size(r.bytes_stored)}, {_size(r.store_rate)}/s)"),
            ("present already", f"{r.pages_present:,}"),
            ("being stored by another", f"{r.pages_pending:,}"),
            ("refused", f"{r.pages_refused:,}"),
            ("evicted", f"{r.evictions:,}"),
        ],
        *_disk(r),
        [
            ("clients", f"{r.clients} ({r.clients_died} died)" if r.clients_died else f"{r.clients}"),
            ("seconds", f"{r.seconds:.1f} ({r.requests_per_second:,.0f} requests/s)"),
        ],
    ]


def _disk(r: Report) -> list[list[tuple[str, str]]]:
    """One section, or none where no disk was used."""
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
