"""`pagetier stats`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click
import msgspec

from pagetier.daemon.cli.daemon_connection import GREETING_S, Unreachable, daemon_at, duration_option, socket_option
from pagetier.daemon.stats.frame_advice import compression_text
from pagetier.daemon.stats.snapshot import PageTier, Snapshot, Tiers
from pagetier.daemon.stats.snapshot_reader import take_snapshot
from pagetier.daemon.status.disk_report import DiskReport, Standing
from pagetier.daemon.status.fleet_status import FleetStatus
from pagetier.daemon.status.phase import Phase
from pagetier.shm import clock
from pagetier.shm.units import counted, format_size

_PAUSE_S: Final = 0.1
_LEAST_S: Final = 1.0  # that a daemon on a busy host needs to answer: what is left of the time may be less


@click.command()
@socket_option
@duration_option("--wait", None, "First wait until engines can attach, at most so long; 0s asks once.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
@click.option("--short", is_flag=True, help="Print one line instead of tables. Excludes --json.")
def stats(socket: Path, wait: float | None, *, as_json: bool, short: bool) -> None:
    """Show the contents of the cache and how it is used.

    Counters start when the segments are created, and continue over restarts of the daemon.

    Exit codes: 0: success; 3: no daemon, or with --wait: engines cannot attach within the time.
    """
    _check_form(as_json=as_json, short=short)
    if wait is not None:
        _wait(socket, wait)
    with daemon_at(socket) as daemon:
        snapshot = take_snapshot(daemon.observer)
    if as_json:
        # bytes, since JSON is UTF-8 even if the terminal is not
        click.echo(msgspec.json.format(msgspec.json.encode(snapshot), indent=2))
    elif short:
        click.echo(one_line(snapshot))
    else:
        _show_tables(snapshot, socket)


def _check_form(*, as_json: bool, short: bool) -> None:
    if as_json and short:
        raise click.UsageError("--json and --short exclude each other")


def _wait(socket: Path, seconds: float) -> None:
    deadline = clock.Deadline(seconds)
    while why := _why_not(socket, min(GREETING_S, max(_LEAST_S, deadline.left)) if seconds else GREETING_S):
        if deadline.is_over:
            raise Unreachable(why)
        clock.sleep(min(_PAUSE_S, deadline.left))


def _why_not(socket: Path, patience: float) -> str:
    """Returns why engines cannot attach; "" if they can."""
    try:
        with daemon_at(socket, patience=patience) as daemon:
            found = take_snapshot(daemon.observer).daemon
    except Unreachable as error:
        return error.message
    return "" if found.phase is Phase.SERVING else f"the daemon on {socket} is {found.phase_text}"


def one_line(snapshot: Snapshot) -> str:
    """Returns the state of the cache in one line, for prompts, logs and watch(1)."""
    tiers = snapshot.tiers
    parts = [
        snapshot.daemon.phase_text,
        _tier("memory", tiers.memory),
        *([_disk(snapshot.disk, tiers)] if snapshot.disk.standing is not Standing.NONE else []),
        *([_fleet(snapshot.fleet)] if snapshot.fleet.standing != "none" else []),
        snapshot.lookups.text,
        counted(len(snapshot.clients), "client"),
    ]
    return "; ".join(parts)


def _disk(report: DiskReport, tiers: Tiers) -> str:
    state = "" if report.standing is Standing.OPEN else f" is {report.state}"
    down = [device.folder for device in report.devices if device.standing is Standing.DOWN]
    silent = [f"{folder}: down" for folder in down if report.several and folder not in report.trouble]
    trouble = f" ({why})" if (why := "; ".join(filter(None, [report.trouble, *silent]))) else ""
    return f"disk{state}{trouble}" if state else f"{_tier('disk', tiers.disk)}{trouble}"


def _fleet(fleet: FleetStatus) -> str:
    state = "is not asked, since it does not answer" if fleet.breaker_open else f"is {fleet.standing}"
    return f"fleet {state}{f' ({fleet.trouble})' if fleet.trouble else ''}"


def _tier(name: str, tier: PageTier) -> str:
    room = f"{format_size(tier.used)} of {format_size(tier.room)}"
    return f"{name} {tier.pages_text}, {room}{compression_text(tier.bytes, tier.used)}"


def _show_tables(snapshot: Snapshot, socket: Path) -> None:
    from pagetier.daemon.cli.tables import show_snapshot

    show_snapshot(snapshot, socket)
