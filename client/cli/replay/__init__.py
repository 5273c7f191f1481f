"""`pagetier replay`: drives a daemon with a trace of real prompts, and checks every byte that comes back.

Here is the command line alone, so that a list of commands is quick to make; run.py has the work.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

_WORD_BYTES = 8
_MOST_CLIENTS = 56  # slots of an index
# The first line keeps click from joining the others.
_EXIT_CODES = """\b
Exit codes:
  0  done
  1  a page was wrong, or a client died
  2  used wrongly, or no trace
  3  the daemon can not be reached
  4  the daemon of --arena refused to start"""


def _whole_words(context: click.Context, option: click.Parameter, page_bytes: int) -> int:
    if page_bytes % _WORD_BYTES:
        raise click.BadParameter(f"{page_bytes} is no multiple of {_WORD_BYTES}")
    return page_bytes


def _check_together(options: dict[str, Any]) -> None:
    if options["arena"] is not None and options["socket"] is not None:
        raise click.UsageError("--arena starts a daemon of its own, --socket names a running one: give one of them")
    if options["disk"] is not None and options["arena"] is None:
        raise click.UsageError("--disk is for a daemon of its own: give --arena, too")
    if options["disk"] is not None and options["clients"] == _MOST_CLIENTS:
        raise click.UsageError(f"the disk takes a client's place: with --disk at most {_MOST_CLIENTS - 1} clients")
    for option in ("--disk-path", "--disk-write"):
        if options[option[2:].replace("-", "_")] is not None and options["disk"] is None:
            raise click.UsageError(f"{option} says how a disk is used: give --disk, too")


@click.command(context_settings={"help_option_names": ["-h", "--help"]}, epilog=_EXIT_CODES)
@click.argument("trace", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--clients",
    metavar="N",
    type=click.IntRange(1, _MOST_CLIENTS),
    default=1,
    show_default=True,
    help="Processes that share the requests, each attached on its own.",
)
@click.option("--arena", metavar="SIZE", help="Start a daemon for this replay alone, with just this much memory.")
@click.option("--disk", metavar="SIZE", help="With --arena: give that daemon a disk tier, of just this size.")
@click.option(
    "--disk-path",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="With --disk: its folder, which stays with all that it holds.  [default: a temporary one]",
)
@click.option(
    "--disk-write",
    type=click.Choice(["evict", "through", "second"]),
    help="With --disk: write pages before they leave memory, all at once, or before they leave if they were used again."
    "  [default: evict]",
)
@click.option(
    "--page-bytes",
    metavar="N",
    type=click.IntRange(min=_WORD_BYTES),
    default=4096,
    show_default=True,
    callback=_whole_words,
    help="Bytes stored for each block of the trace.",
)
@click.option(
    "--block-tokens",
    metavar="N",
    type=click.IntRange(min=1),
    default=512,
    show_default=True,
    help="Tokens of a block of the trace.",
)
@click.option("--requests", metavar="N", type=click.IntRange(min=1), help="Replay the first N requests only.")
@click.option(
    "--pace",
    metavar="N",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="At most N requests a second, of all clients together; 0: as fast as it goes.",
)
@click.option("--socket", type=click.Path(path_type=Path), help="The running daemon's control socket.")
@click.option("--json", is_flag=True, help="Print one JSON object instead of a table.")
def replay(**options: Any) -> None:
    """Replay a TRACE of prompts and check every byte that comes back.

    Each prompt is matched, loaded (from disk, too), checked and stored, in the order of the trace.

    TRACE has a JSON object a line, and may be compressed with gzip; of each it takes "input_length", the tokens of
    the prompt, and "hash_ids", an id for each block of them that stands for the block and all before it. Only full
    blocks are stored. Without --arena the running daemon is used, with what it holds.
    """
    _check_together(options)
    from pagetier.client.cli.replay.run import ReplayArguments, main

    raise SystemExit(main(ReplayArguments(**options)))
