"""`pagetier pages pin` and `pagetier pages unpin`."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Final, TypeVar

import click
import msgspec

from pagetier.daemon.cli.config import config_of
from pagetier.daemon.cli.daemon_connection import Daemon, daemon_at, socket_option
from pagetier.daemon.cli.page_arguments import BATCH_PAGES, FileCommand, chosen_spaces, keys_file_option, keys_in
from pagetier.daemon.cli.tier_text import why_unlisted
from pagetier.daemon.config.schema import Config
from pagetier.daemon.host.peer_credentials import Rights
from pagetier.daemon.stats.page_lookup import count_only_on_disk, only_on_disk
from pagetier.shm._core import HintKind, Observer
from pagetier.shm.page_rows import PAGE_KEYS
from pagetier.shm.protocol import HINTS, HintPages, PagesHinted
from pagetier.shm.units import counted, format_size

_LRU: Final = (
    'with evict.policy = "lru" no page is pinned: set evict.policy = "cadence" and reload the configuration (SIGHUP)'
)
_READ_FIRST: Final = "read them into memory with `pagetier pages prefetch`, then pin them"
_Command = TypeVar("_Command", bound=Callable[..., Any])


class PinOutcome(msgspec.Struct, frozen=True):
    """What `--json` prints.

    Attributes:
        pages: Pages that were named, by their keys or their namespace.
        applied: Those of them that are pinned, or unpinned, now.
        kept_bytes: All bytes that are kept now.
        only_on_disk: Those of the named pages that are only on disk, where none is pinned.
    """

    pages: int
    applied: int
    kept_bytes: int
    only_on_disk: int


def _options(command: _Command) -> _Command:
    for option in (
        click.option("--json", "show", flag_value="json", help="Print one JSON object."),
        keys_file_option("[default: all pages of the namespace]"),
        click.option(
            "--namespace",
            metavar="TEXT",
            help="Only pages of namespaces with this label, model, or digest (at least 8 digits).",
        ),
        socket_option,
    ):
        command = option(command)
    return command


@click.command(cls=FileCommand)
@_options
def pin(socket: Path, namespace: str | None, file: IO[bytes] | None, show: str | None) -> None:
    """Keep pages in memory: they are evicted last.

    For prompts that many requests share. Pages stay pinned until `pagetier pages unpin`, a flush or a restart of the
    daemon. Pages that are only on disk are not pinned: `pagetier pages prefetch` reads them into memory. All pages that
    are kept by request have at most the share evict.keep_share of the arena; beyond that, the oldest of the user that
    keeps most end. With evict.policy = "lru" no page can be pinned.

    Exit codes: 0: all pages that were named, also by their namespace, are pinned; 1: some are not, or may be on a disk
    tier that is not open (the message says how many, and why), or no such namespace; 2: invalid usage; 3: no daemon.
    """
    outcome, limit, unlisted = _send(socket, namespace, file, HintKind.KEEP)
    _print(outcome, show, f"{counted(outcome.applied, 'page')} pinned")
    _expect_all(outcome, limit if file is None else f"in no tier, of another namespace, or {limit}", unlisted)


@click.command(cls=FileCommand)
@_options
def unpin(socket: Path, namespace: str | None, file: IO[bytes] | None, show: str | None) -> None:
    """Let pages leave memory again that `pagetier pages pin` or an engine keeps.

    Root and the daemon's own user unpin the pages of all users, other users only their own.

    Exit codes: 0: done; 1: no such namespace, or evict.policy is "lru" (the message says which); 2: invalid usage; 3:
    no daemon.
    """
    outcome, _, _ = _send(socket, namespace, file, HintKind.UNKEEP)
    _print(outcome, show, f"{counted(outcome.applied, 'page')} unpinned")


def _expect_all(outcome: PinOutcome, why: str, unlisted: str) -> None:
    missing = max(0, outcome.pages - outcome.applied)
    if on_disk := min(missing, outcome.only_on_disk):
        others = f", {missing - on_disk:,} {why}" if on_disk < missing else ""
        why = f"{on_disk:,} only on disk ({_READ_FIRST}){others}"
    reasons = [f"{counted(missing, 'page')} not pinned: {why}"] * bool(missing)
    reasons += [f"pages that are only on disk are not pinned: {unlisted}"] * bool(unlisted)
    if reasons:
        raise click.ClickException("; ".join(reasons))


def _send(socket: Path, namespace: str | None, file: IO[bytes] | None, kind: HintKind) -> tuple[PinOutcome, str, str]:
    """Sends the request.

    Returns:
        Its outcome, the limit of what is kept, as text, and why pages of the namespace that are only on disk are not
        known, "" if they are or if the file names the pages.

    Raises:
        click.UsageError: Neither a namespace nor a file is given, or a line of the file is no key.
        click.ClickException: The namespace does not exist, or the daemon does not keep pages.
    """
    if namespace is None and file is None:
        raise click.UsageError("give --namespace, --keys-file or both")
    keys = None if file is None else keys_in(file)
    with daemon_at(socket, Rights.ATTACH) as daemon:
        limit = _limit(daemon, _check(daemon))
        unlisted = why_unlisted(daemon.observer, daemon.extras) if keys is None else ""
        on_disk = _count_on_disk(daemon.observer, namespace, keys)
        parts = [b""] if keys is None else list(PAGE_KEYS.batches(keys, BATCH_PAGES))
        answers = [
            daemon.ask(HintPages(number, part, kind, math.inf, namespace), PagesHinted)
            for number, part in enumerate(parts, 1)
        ]
    for answer in answers:
        if answer.trouble:
            raise click.ClickException(answer.trouble)
    pages, applied = sum(answer.pages for answer in answers), sum(answer.applied for answer in answers)
    pages += on_disk if keys is None else 0  # of a namespace, the daemon counts those in memory
    return PinOutcome(pages, applied, answers[-1].kept_bytes if answers else 0, on_disk), limit, unlisted


def _count_on_disk(observer: Observer, namespace: str | None, keys: bytes | None) -> int:
    """Returns how many of the named pages are only on disk. Raises click.ClickException: no such namespace."""
    spaces = chosen_spaces(observer, namespace)
    if keys is None:
        return asyncio.run(count_only_on_disk(observer, spaces))
    return only_on_disk(observer.locate(keys))


def _limit(daemon: Daemon, config: Config) -> str:
    size = daemon.observer.header().arena_bytes
    most = format_size(int(size * config.evict.keep_share))
    return f"beyond evict.keep_share ({most} of {format_size(size)})"


def _check(daemon: Daemon) -> Config:
    """Returns the daemon's settings. Raises ClickException: nothing can be pinned."""
    if HINTS not in daemon.extras:
        raise click.ClickException("this daemon is of an earlier version, which keeps no pages: restart it")
    config = config_of(daemon)
    if config.evict.policy == "lru":
        raise click.ClickException(_LRU)
    return config


def _print(outcome: PinOutcome, show: str | None, text: str) -> None:
    if show:
        click.echo(msgspec.json.encode(outcome))
    else:
        click.echo(f"{text}; {format_size(outcome.kept_bytes)} are kept in memory by request")
