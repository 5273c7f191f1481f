"""`pagetier-bench calibrate`: measures the copy paths between memory and GPU of this host, and writes thresholds.

This module only has the command line, so that `pagetier-bench --help` imports little; run.py does the work.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

# The first line keeps click from joining the others.
_EXIT_CODES = """\b
Exit codes:
  0  done
  1  no GPU, no torch, or an invalid configuration; nothing was written
  2  usage error"""


@click.command(context_settings={"help_option_names": ["-h", "--help"]}, epilog=_EXIT_CODES)
@click.option(
    "--device",
    metavar="N",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="The index of the GPU, as in torch.",
)
@click.option(
    "--write",
    metavar="PATH",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file for the thresholds.  [default: ~/.config/pagetier/copy.calibrated.toml]",
)
@click.option("--dry-run", is_flag=True, help="Measure and print, but do not write.")
@click.option("--json", is_flag=True, help="Print one JSON object instead of tables.")
def calibrate(**options: Any) -> None:
    """Measure which copy path is fastest at which length, and write the thresholds.

    This takes half a minute, 256 MiB of the GPU's memory and as much of the host's. Run it while the GPU is idle.
    Engines of this user read the thresholds from the file, those of all users from
    /etc/pagetier/copy.calibrated.toml. Tables of copy.toml take precedence; delete the file to use the defaults again.
    """
    if options["dry_run"] and options["write"] is not None:
        raise click.UsageError("--dry-run and --write exclude each other")
    from pagetier.client.cli.calibrate.calibration import CalibrateArguments, main

    raise SystemExit(main(CalibrateArguments(**options)))
