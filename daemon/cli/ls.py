"""`pagetier pages ls`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
import msgspec

from pagetier.daemon.cli.daemon_connection import daemon_at, socket_option
from pagetier.daemon.cli.number_types import WholeNumber
from pagetier.daemon.cli.page_arguments import named_space
from pagetier.daemon.cli.tier_text import why_unlisted
from pagetier.daemon.common.namespaces import with_pages
from pagetier.shm import clock
from pagetier.shm._core import LISTED_LAYOUT, NamespaceRecord, Observer
from pagetier.shm.units import format_size, spell_duration

if TYPE_CHECKING:
    from pagetier.daemon.stats.prefixes import Prefix

_NS = 1e9
_UNKNOWN = "before the daemon's start"
# The times of uses are nanoseconds since the boot, but pages that a daemon finds on disk get 1, 2, 3 and so on. No
# daemon has served so early.
_EARLIEST_USE_NS: Final = 1_000_000_000


class ListedNamespace(msgspec.Struct, frozen=True):
    """A namespace. Pages that are in memory and on disk count in both tiers.

    idle_seconds is the most that it can be: matches leave no trace at a namespace, only at its pages. None: nothing of
    it was used since the daemon found it on disk.
    """

    label: str
    digest: str
    page_tokens: int
    memory_pages: int
    memory_bytes: int
    disk_pages: int
    disk_bytes: int
    idle_seconds: float | None


class ListedPrefix(msgspec.Struct, frozen=True):
    """A prefix, as Prefix says. idle_seconds is None if nothing of it was used since the daemon found it on disk."""

    key: str
    pages: int
    memory_pages: int
    disk_pages: int
    bytes: int
    idle_seconds: float | None


@click.command()
@socket_option
@click.argument("namespace", required=False)
@click.option("--namespace", "named", metavar="TEXT", help="The same as NAMESPACE, as other commands take it.")
@click.option("--most", metavar="N", type=WholeNumber(1, 10_000), default=20, show_default=True, help="The most lines.")
@click.option("--json", "show", flag_value="json", help="Print a JSON list.")
def ls(socket: Path, namespace: str | None, named: str | None, most: int, show: str | None) -> None:
    """List the namespaces, or the largest prefixes of one.

    A prefix is all pages that begin with the same page. Which page follows which is not known of pages that were stored
    with evict.policy = "lru": those that were stored together count as one prefix. The last use of pages that the
    daemon has found on disk, and that were not used since, is not known.

    Exit codes: 0: success; 1: no such namespace; 2: invalid usage; 3: no daemon.
    """
    wanted = _one_of(namespace, named)
    with daemon_at(socket) as daemon:
        incomplete = why_unlisted(daemon.observer, daemon.extras)
        if wanted is None:
            namespaces = _namespaces(daemon.observer, most + 1)
            _print_namespaces(namespaces[:most], show, incomplete)
            _print_rest(len(namespaces), most, show)
        else:
            from pagetier.daemon.stats.prefixes import largest_prefixes

            space = named_space(daemon.observer, wanted)
            prefixes = largest_prefixes(daemon.observer, space.number, most + 1)
            _print_prefixes(prefixes[:most], show, incomplete)
            _print_rest(len(prefixes), most, show)


def _one_of(namespace: str | None, named: str | None) -> str | None:
    """Returns the namespace that was given in one of two ways. Raises click.UsageError if it was given in both."""
    if namespace is not None and named is not None:
        raise click.UsageError("give the namespace once: as NAMESPACE or with --namespace")
    return namespace if named is None else named


def _namespaces(observer: Observer, most: int) -> list[ListedNamespace]:
    """Returns the largest namespaces, the largest first."""
    spaces = sorted(with_pages(observer.spaces()), key=lambda space: -(space.bytes + space.disk_bytes))
    return [
        ListedNamespace(
            label=space.name,
            digest=space.digest.hex(),
            page_tokens=space.page_tokens,
            memory_pages=space.pages,
            memory_bytes=space.bytes,
            disk_pages=space.disk_pages,
            disk_bytes=space.disk_bytes,
            idle_seconds=_idle_seconds(_used_ns(observer, space)),
        )
        for space in spaces[:most]
    ]


def _used_ns(observer: Observer, space: NamespaceRecord) -> int:
    """Returns when a namespace was last used, or an earlier time.

    A daemon that finds a namespace on disk notes that as a use, so only the pages tell.
    """
    if not space.disk_pages:
        return space.used_ns
    import numpy as np

    from pagetier.shm.row_arrays import dtype_of

    return int(np.frombuffer(observer.pages(space.number), dtype_of(LISTED_LAYOUT))["used_ns"].max(initial=0))


def _idle_seconds(used_ns: int) -> float | None:
    """Returns how long something has not been used; None if that began before the daemon."""
    return round(max(0.0, (clock.now_ns() - used_ns) / _NS), 3) if used_ns > _EARLIEST_USE_NS else None


def _print_namespaces(found: Sequence[ListedNamespace], show: str | None, incomplete: str) -> None:
    rows = [
        (
            each.label,
            each.digest[:16],
            f"{each.memory_pages:,}",
            format_size(each.memory_bytes),
            f"{each.disk_pages:,}",
            format_size(each.disk_bytes),
            _at_most(_ago(each.idle_seconds)),
        )
        for each in found
    ]
    heads = ("namespace", "digest", "in memory", "bytes", "on disk", "bytes", "last used")
    _print(found, heads, rows, show, incomplete)


def _print_prefixes(found: Sequence[Prefix], show: str | None, incomplete: str) -> None:
    shown = [
        ListedPrefix(
            key=each.key,
            pages=each.pages,
            memory_pages=each.memory_pages,
            disk_pages=each.disk_pages,
            bytes=each.bytes,
            idle_seconds=_idle_seconds(each.used_ns),
        )
        for each in found
    ]
    rows = [
        (
            each.key[:16],
            f"{each.pages:,}",
            format_size(each.bytes),
            f"{each.memory_pages:,}",
            f"{each.disk_pages:,}",
            _ago(each.idle_seconds),
        )
        for each in shown
    ]
    _print(shown, ("first page", "pages", "bytes", "in memory", "on disk", "last used"), rows, show, incomplete)


def _print_rest(found: int, most: int, show: str | None) -> None:
    if found > most and not show:
        click.echo(f"only the largest {most:,} are shown: --most shows more", err=True)


def _at_most(ago: str) -> str:
    return ago if ago == _UNKNOWN else f"at most {ago}"


def _ago(seconds: float | None) -> str:
    return f"{spell_duration(float(round(seconds)))} ago" if seconds is not None else _UNKNOWN


def _print(
    found: Sequence[msgspec.Struct],
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    show: str | None,
    incomplete: str,
) -> None:
    if show:
        click.echo(msgspec.json.format(msgspec.json.encode(found), indent=2))
        return
    if note := incomplete or ("" if rows else "nothing is stored yet"):
        click.echo(note, err=True)
    if not rows:
        return
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    for row in (heads, *rows):
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
