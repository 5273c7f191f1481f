"""`pagetier-bench replay`: runs a trace of real prompts against a daemon, and verifies every byte that it loads.

This module only has the command line, so that `pagetier-bench --help` imports little; run.py does the work.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pagetier.shm._core import SLOTS

_WORD_BYTES = 8
# The first line keeps click from joining the others.
_EXIT_CODES = """\b
Exit codes:
  0  done
  1  a page had wrong content, or a client died
  2  usage error, or an invalid trace
  3  cannot reach the daemon
  4  the daemon of --arena did not start; this is its exit code"""


def _whole_words(context: click.Context, option: click.Parameter, page_bytes: int) -> int:
    if page_bytes % _WORD_BYTES:
        raise click.BadParameter(f"{page_bytes} is not a multiple of {_WORD_BYTES}")
    return page_bytes


def _check_together(options: dict[str, Any]) -> None:
    live = options["live"] or options["socket"] is not None
    if options["arena"] is not None and live:
        raise click.UsageError("--arena starts a private daemon, --live uses a running one: they exclude each other")
    if options["disk"] is not None and options["arena"] is None:
        raise click.UsageError("--disk needs --arena: it configures the private daemon")
    if options["disk"] is not None and options["clients"] == SLOTS:
        raise click.UsageError(f"with --disk there are at most {SLOTS - 1} clients: the disk worker takes one slot")
    for option in ("--disk-path", "--disk-write"):
        if options[option[2:].replace("-", "_")] is not None and options["disk"] is None:
            raise click.UsageError(f"{option} needs --disk")
    if options["arena"] is None and not live:
        raise click.UsageError(
            "give --arena SIZE for a private daemon, or --live to fill the running one, which may evict its pages"
        )


@click.command(context_settings={"help_option_names": ["-h", "--help"]}, epilog=_EXIT_CODES)
@click.argument("trace", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--clients",
    metavar="N",
    type=click.IntRange(1, SLOTS),
    default=1,
    show_default=True,
    help="Number of processes that share the requests; each one attaches separately.",
)
@click.option("--arena", metavar="SIZE", help="Start a private daemon for this replay, with exactly this much memory.")
@click.option("--disk", metavar="SIZE", help="With --arena: a disk tier of exactly this size.")
@click.option(
    "--disk-path",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="With --disk: its folder, which is kept.  [default: a temporary one]",
)
@click.option(
    "--disk-write",
    type=click.Choice(["evict", "through", "second"]),
    help="With --disk: when to write pages: at their eviction, at once, or at their eviction if they were used again."
    "  [default: evict]",
)
@click.option(
    "--page-bytes",
    metavar="N",
    type=click.IntRange(min=_WORD_BYTES),
    default=4096,
    show_default=True,
    callback=_whole_words,
    help="Bytes of a page.",
)
@click.option(
    "--block-tokens",
    metavar="N",
    type=click.IntRange(min=1),
    default=512,
    show_default=True,
    help="Tokens of a block of the trace.",
)
@click.option(
    "--page-blocks",
    metavar="N",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Blocks of the trace that form a page, as the small blocks of an engine do.",
)
@click.option("--requests", metavar="N", type=click.IntRange(min=1), help="Replay the first N requests only.")
@click.option(
    "--pace",
    metavar="N",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="At most N requests a second in total; 0: no limit.",
)
@click.option("--live", is_flag=True, help="Use the running daemon, whose pages may be evicted by those of the trace.")
@click.option(
    "--socket",
    type=click.Path(readable=False, path_type=Path),
    help="With --live: the running daemon's control socket.",
)
@click.option("--json", is_flag=True, help="Print one JSON object instead of a table.")
def replay(**options: Any) -> None:
    """Replay a TRACE of prompts and verify every byte that is loaded.

    Each prompt is matched, loaded (also from disk), verified and stored, in the order of the trace.

    TRACE has one JSON object per line and may be compressed with gzip. The command reads "input_length", the tokens of
    the prompt, and "hash_ids", an ID for each block of the prompt that stands for the block and all before it. Only
    full pages are stored. --arena starts a private daemon; --live uses the running one, with the pages that it has.
    """
    _check_together(options)
    from pagetier.client.cli.replay.run import ReplayArguments, main

    del options["live"]
    raise SystemExit(main(ReplayArguments(**options)))
