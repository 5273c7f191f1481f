"""The command line of `pagetier-bench`. It imports little; comparison.py does the work."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click

from pagetier.client.cli.calibrate import calibrate
from pagetier.client.cli.replay import replay
from pagetier.shm.units import parse_size

_SETTINGS: Final = {"help_option_names": ["-h", "--help"]}
# The first line keeps click from joining the others.
_EXIT_CODES: Final = """\b
Exit codes:
  0  done
  1  a server or the daemon did not start, or a request failed
  2  usage error, an invalid trace, a missing program or too little memory
  130, 143  ended by Ctrl-C or SIGTERM: all processes are stopped first"""

_WHOLE: Final = 1000


def _size(context: click.Context, option: click.Parameter, text: str | None) -> int | None:
    try:
        return None if text is None else parse_size(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


class _WholeSentences(click.Group):
    """A group whose list of commands has the first sentence of each, which click cuts to the terminal's width."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the commands."""
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, self.commands[name].get_short_help_str(_WHOLE)) for name in sorted(self.commands)]
            )


@click.group(cls=_WholeSentences, context_settings=_SETTINGS)
def main() -> None:
    """Measure engines, caches and copies on this host."""


main.add_command(calibrate)
main.add_command(replay)


@main.command(
    context_settings=_SETTINGS, epilog=_EXIT_CODES, short_help="Compare vLLM alone, and with caches behind it."
)
@click.argument("model")
@click.argument("vllm_arguments", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--trace",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Send the prompts of a trace, as `pagetier-bench replay` reads it, instead of chats.",
)
@click.option(
    "--block-tokens",
    metavar="N",
    type=click.IntRange(min=1),
    default=512,
    show_default=True,
    help="With --trace: tokens of a block of the trace.",
)
@click.option("--requests", metavar="N", type=click.IntRange(min=1), help="With --trace: send its first N requests.")
@click.option(
    "--chats",
    metavar="N",
    type=click.IntRange(min=1),
    help="Number of chats.  [default: as many as exceed the engine's cache, at least 8]",
)
@click.option(
    "--prompt-tokens",
    metavar="N",
    type=click.IntRange(min=64),
    default=8192,
    show_default=True,
    help="Tokens of a chat when it returns, at most what the model takes.",
)
@click.option(
    "--answer-tokens",
    metavar="N",
    type=click.IntRange(min=1),
    default=16,
    show_default=True,
    help="Tokens of each answer.",
)
@click.option(
    "--at-once",
    metavar="N",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Number of requests that are sent at the same time.",
)
@click.option(
    "--rounds",
    metavar="N",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="Number of rounds. Each one starts each system once.",
)
@click.option(
    "--arena",
    metavar="SIZE",
    callback=_size,
    help="Memory for pagetier, and for native offloading.  [default: a third of the available memory]",
)
@click.option(
    "--frame-size",
    metavar="SIZE",
    callback=_size,
    default="1MiB",
    show_default=True,
    help="The daemon's arena.frame_size; less for a tiny model, whose pages are smaller.",
)
@click.option("--no-native", is_flag=True, help="Leave native offloading out. It is left out where there is no GPU.")
@click.option(
    "--seed",
    metavar="N",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Seed of prompts and of intervals.",
)
@click.option("--json", is_flag=True, help="Print one JSON object instead of the table. Progress goes to stderr.")
def serve(**options: Any) -> None:
    """Compare `vllm serve MODEL` alone, with native offloading, and with pagetier.

    Arguments after `--` are passed to vLLM: pagetier-bench serve MODEL -- --max-model-len 16384

    The systems take turns: a round starts each of them once, with an empty cache, and sends the same prompts to it. By
    default these are chats with a common system prompt, and each chat returns once, after more tokens of other chats
    than the engine's own cache can hold. vLLM has to be installed in the environment of this command.
    """
    if options["trace"] is None and options["requests"] is not None:
        raise click.UsageError("--requests needs --trace; --chats sets the number of chats")
    if options["trace"] is not None and options["chats"] is not None:
        raise click.UsageError("--trace and --chats exclude each other")
    from pagetier.client.cli.bench.comparison import ServeArguments, run

    raise SystemExit(run(ServeArguments(**options)))
