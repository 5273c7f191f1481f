"""`pagetier calibrate`: measures how copies go best between this host's memory and its GPU, and writes it down.

Here is the command line alone, so that a list of commands is quick to make; run.py has the work.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

# The first line keeps click from joining the others.
_EXIT_CODES = """\b
Exit codes:
  0  done
  1  no GPU, no torch, or a configuration that can not be used; nothing was written
  2  used wrongly"""


@click.command(context_settings={"help_option_names": ["-h", "--help"]}, epilog=_EXIT_CODES)
@click.option(
    "--device",
    metavar="N",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Which GPU, as torch counts them.",
)
@click.option(
    "--write",
    metavar="PATH",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The copies' configuration to write to.  [default: $PAGETIER_COPY_CONFIG, else ~/.config/pagetier/copy.toml]",
)
@click.option("--dry-run", is_flag=True, help="Measure and print, and write nothing.")
@click.option("--json", is_flag=True, help="Print one JSON object instead of tables.")
def calibrate(**options: Any) -> None:
    """Measure which way to the GPU is best for which copies, and write it down.

    Takes half a minute, 256 MiB of the GPU's memory and as much of the host's; best while nothing else is running.
    Only the thresholds are written: what else stands in the file stays.
    """
    if options["dry_run"] and options["write"] is not None:
        raise click.UsageError("--dry-run writes nothing, --write says where to: give one of them")
    from pagetier.client.cli.calibrate.run import CalibrateArguments, main

    raise SystemExit(main(CalibrateArguments(**options)))
