"""Checks the fleet: whether its store can be used from here and how fast it is, and its state in the daemon."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import Final
from urllib.parse import urlsplit

import msgspec

from pagetier.daemon.cli.doctor.result import Result, ok, problem, warning
from pagetier.daemon.config.remote_options import RemoteOptions
from pagetier.daemon.host.host import Host
from pagetier.daemon.host.mounts import VOLATILE, mount_of
from pagetier.daemon.status.fleet_status import FleetStatus
from pagetier.shm.units import counted, format_size, spell_duration
from pagetier.tiers.base import TierError, shown_url
from pagetier.tiers.fleet.check_host import check_host, folder_warning
from pagetier.tiers.fleet.trial import TrialOptions, TrialResult

_TRIAL: Final = (sys.executable, "-m", "pagetier.tiers.fleet.trial")
_STARTING_S: Final = 30.0
_CALLS: Final = 10  # of one trial, each of which ends within remote.timeout
_FOLDER: Final = "file://"
_CREDENTIALS: Final = "AWS_ACCESS_KEY_ID"


def check_fleet(remote: RemoteOptions, status: FleetStatus) -> Iterator[Result]:
    """Tries the store, with one page of its own, and checks the status, whose standing is "none" without a daemon."""
    if not remote.url:
        yield ok("fleet", "no fleet is configured (remote.url)")
        return
    try:
        check_host(remote.fleet)
        if rights := folder_warning(remote.fleet):
            yield warning("fleet folder", rights)
        result = _trial(remote)
    except TierError as error:
        yield problem("fleet store", str(error))
    else:
        yield from _judged(remote, result)
    yield from _standing(status)


def check_fleet_folder(remote: RemoteOptions, host: Host) -> Iterator[Result]:
    """Warns if the folder of a fleet is in the memory of this host. A trial cannot tell, since all of it works."""
    if not remote.url.startswith(_FOLDER):
        return
    folder = Path(urlsplit(remote.url).path).resolve()
    mount = mount_of(folder, host.mounts())
    if mount is not None and mount.kind in VOLATILE:
        yield warning(
            "fleet folder", f"{folder} is {mount.kind}: other hosts do not see it, and it does not survive a reboot"
        )


def _trial(remote: RemoteOptions) -> TrialResult:
    """Tries the store in a process that is killed if it does not end in time. Raises TierError."""
    limit = _STARTING_S + _CALLS * remote.timeout
    options = msgspec.json.encode(TrialOptions(fleet=remote.fleet, writes=remote.write == "through"))
    try:
        done = subprocess.run(_TRIAL, input=options, stdout=PIPE, stderr=DEVNULL, timeout=limit, check=False)
    except subprocess.TimeoutExpired as error:
        raise TierError(f"a trial of the store did not end within {limit:g} s") from error
    if not done.stdout:
        raise TierError(f"the store's library ended the process of a trial, with exit code {done.returncode}")
    return msgspec.json.decode(done.stdout, type=TrialResult)


def _judged(remote: RemoteOptions, result: TrialResult) -> Iterator[Result]:
    if result.failure:
        yield problem("fleet store", result.failure + _credentials_hint(remote))
        return
    asked = f"a question takes {1000 * result.asked_s:.1f} ms"
    if result.asked_s > remote.ask_timeout:
        limit = spell_duration(remote.ask_timeout)
        yield warning(
            "fleet store", f"{asked}, longer than remote.ask_timeout = {limit}: pages will be misses; raise it"
        )
    else:
        yield ok("fleet store", f"{shown_url(remote.url)}: {asked}{_speed(result)}")
    if result.left:
        yield warning("fleet objects", f"the page of this check could not be removed: {result.left}")


def _speed(result: TrialResult) -> str:
    if not result.page_bytes:
        return "; not written to (remote.write)"
    wrote, read = (format_size(int(result.page_bytes / seconds)) for seconds in (result.wrote_s, result.read_s))
    return f"; a page of {format_size(result.page_bytes)} is written at {wrote}/s and read at {read}/s"


def _credentials_hint(remote: RemoteOptions) -> str:
    if not remote.url.startswith("s3:") or _CREDENTIALS in os.environ:
        return ""
    return f"; this command has no {_CREDENTIALS} in its environment: does the worker's environment have one?"


def _standing(status: FleetStatus) -> Iterator[Result]:
    """Checks what the daemon reports."""
    if status.standing == "down":
        yield problem("fleet tier", f"down: {status.trouble}")
    elif status.breaker_open:
        yield warning("fleet tier", f"engines do not ask it, since it does not answer: {status.trouble}")
    elif status.standing != "none":
        yield ok("fleet tier", f"{status.standing}; {_counts(status)}")
    if status.write_trouble:
        yield warning("fleet writes", f"{counted(status.waiting, 'page')} cannot be written: {status.write_trouble}")
    if status.failed:
        yield warning("fleet writes", f"{counted(status.failed, 'page')} given up unwritten: {status.given_up}")
    if status.damaged:
        yield warning("fleet pages", f"{counted(status.damaged, 'object')} had wrong bytes: the store may be failing")
    if status.note:
        yield warning("fleet pages", status.note)


def _counts(status: FleetStatus) -> str:
    return f"{counted(status.read, 'page')} read, {counted(status.written, 'page')} written"
