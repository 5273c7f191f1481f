"""A replay for people: a bar while it runs, a table at the end.

rich is imported where it is used, as a program that asks for JSON need not wait for it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pagetier.client.cli.replay.report import Report

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
