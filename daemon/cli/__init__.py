"""`pagetier`: commands that inspect and control a daemon."""

from __future__ import annotations

from typing import Final

import click

from pagetier.daemon.cli.command_table import CommandEntry, CommandTable
from pagetier.daemon.common.version_option import version_option
from pagetier.shm.exit_codes import exit_code_help

COMMANDS: Final = {
    "advise": CommandEntry(
        f"{__name__}.advise", "Show what other sizes of memory and disk would hit, and why pages were missed"
    ),
    "config": CommandEntry(f"{__name__}.config", "Show the settings that the daemon runs by, and the source of each"),
    "doctor": CommandEntry(f"{__name__}.doctor", "Check the host and the daemon; each line says ok or what to do"),
    "flush": CommandEntry(f"{__name__}.flush", "Drop pages, or write all pages to disk"),
    "pages": CommandEntry(f"{__name__}.pages", "List namespaces, look up and prefetch prompts, and pin pages"),
    "reclaim": CommandEntry(
        f"{__name__}.reclaim", "Free the slot of an engine that has ended, if a restarted daemon cannot see that it has"
    ),
    "resize": CommandEntry(f"{__name__}.resize", "Change sizes while engines run, until the configuration is reloaded"),
    "stats": CommandEntry(f"{__name__}.stats", "Show the contents of the cache and how it is used"),
    "top": CommandEntry(f"{__name__}.top", "Watch the cache: tiers, hit rates, throughput, engines and evictions"),
    "unit": CommandEntry(
        f"{__name__}.unit", "Print, install or remove the systemd units, the system user and an example configuration"
    ),
}
# Commands of builds before the first release.
_FORMER: Final = {
    **{name: f"pagetier pages {name}" for name in ("lookup", "ls", "pin", "prefetch", "unpin")},
    **{name: f"pagetier-bench {name}" for name in ("calibrate", "replay")},
    "selftest": "pagetier doctor --write",
    "wait": "pagetier stats --wait DURATION",
}


@click.group(
    cls=CommandTable,
    entries=COMMANDS,
    former=_FORMER,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=exit_code_help(),
)
@version_option
def main() -> None:
    """Inspect and control the KV cache daemon of this host."""
