"""Tests of real stores that are stopped, killed and restarted: every call ends and returns no wrong bytes."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import msgspec
import pytest

from eventually import eventually
from file_changes import write_at
from fleet_pages import OpenedFleet, names_of, opened_fleet, read_from
from pagetier.tiers.base import Outgoing, ReadOutcome, TierError
from pagetier.tiers.worker_protocol import FleetOptions
from store_pages import content_of, outgoing, outgoings
from store_servers import (
    ACCESS_KEY,
    SECRET_KEY,
    MooncakeServers,
    S3Server,
    ServerProcess,
    mooncake_servers,
    s3_server,
)

TIMEOUT_S = 1.0
PAGES = outgoings(range(8), 100_000)
NEW = outgoing(99, 100_000)


@pytest.fixture
def own_s3(tmp_path: Path) -> Iterator[S3Server]:
    credentials = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
    with patch.dict(os.environ, credentials), s3_server(tmp_path) as server:
        yield server


@pytest.fixture
def own_mooncake(mooncake: MooncakeServers, tmp_path: Path) -> Iterator[MooncakeServers]:
    with mooncake_servers(tmp_path) as servers:
        yield servers


def filled(url: str) -> OpenedFleet:
    """Opens a fleet with pages. A new server allocates its files at the first writes, which takes seconds."""
    options = FleetOptions(url=url, trusted=True, timeout_s=20, buffers=32 << 20)
    with opened_fleet(options) as patient:
        patient.store_all(*PAGES)
    return opened_again(msgspec.structs.replace(options, timeout_s=TIMEOUT_S))


def opened_again(options: FleetOptions, attempts: int = 5) -> OpenedFleet:
    """Opens a fleet. It is asked once at the start, and on a busy machine that answer may be late."""
    for _ in range(attempts - 1):
        with contextlib.suppress(TierError):
            return OpenedFleet(options)
    return OpenedFleet(options)


def assert_misses(opened: OpenedFleet) -> None:
    """Asserts that a read, a write and a question end, as long as the store does not answer."""
    result, _ = read_from(opened.fleet, PAGES[0])
    assert result.outcome is not ReadOutcome.EXACT
    assert opened.fleet.write([], [NEW]).stored == (False,)
    with pytest.raises(TierError):
        opened.fleet.locate(names_of([PAGES[0]]))


def recovers(opened: OpenedFleet, page: Outgoing) -> bool:
    return eventually(lambda: opened.outcome(page) is ReadOutcome.EXACT)


def test_s3_is_stopped_and_continued(own_s3: S3Server) -> None:
    opened = filled(own_s3.url)
    own_s3.process.stop()
    assert_misses(opened)
    own_s3.process.send(signal.SIGCONT)
    assert recovers(opened, PAGES[0])
    assert eventually(lambda: opened.fleet.state().lent_bytes == 0)


def test_s3_is_killed_and_restarted(own_s3: S3Server) -> None:
    opened = filled(own_s3.url)
    own_s3.process.kill()
    assert_misses(opened)
    own_s3.start()
    assert recovers(opened, PAGES[0])
    assert {opened.outcome(page) for page in PAGES} == {ReadOutcome.EXACT}


def test_bytes_that_change_in_the_files_of_s3_are_never_returned(own_s3: S3Server) -> None:
    opened = filled(own_s3.url)
    own_s3.process.kill()
    places = [place_in(own_s3.folder, page) for page in PAGES]
    last = max(range(len(PAGES)), key=lambda number: places[number][1])
    inside, other, source = [number for number in range(len(PAGES)) if number != last][:3]
    write_at(*places[inside], b"\xff" * 4096)
    write_at(*places[other], content_of(PAGES[source].key, PAGES[source].size))
    os.truncate(places[last][0], places[last][1] + 20_000)
    own_s3.start()
    lost = (inside, other, last)
    assert all(recovers(opened, page) for number, page in enumerate(PAGES) if number not in lost)
    assert all(opened.outcome(PAGES[number]) is not ReadOutcome.EXACT for number in lost)


def place_in(folder: Path, page: Outgoing) -> tuple[Path, int]:
    """Returns the volume in which SeaweedFS has a page, and where the page's bytes begin in it."""
    content = content_of(page.key, page.size)
    found = [(path, path.read_bytes().find(content)) for path in folder.rglob("*.dat")]
    return next((path, at) for path, at in found if at >= 0)


@pytest.mark.parametrize("role", ["master", "node"])
def test_mooncake_is_stopped_and_continued(own_mooncake: MooncakeServers, role: str) -> None:
    opened = filled(own_mooncake.url)
    process: ServerProcess = getattr(own_mooncake, role)
    process.stop()
    outcome = opened.outcome(PAGES[0])
    assert outcome is not ReadOutcome.EXACT or role == "master", "the client may know the node without the master"
    assert opened.fleet.write([], [NEW]).stored == (False,)
    process.send(signal.SIGCONT)
    assert eventually(lambda: opened.outcome(PAGES[1]) in (ReadOutcome.EXACT, ReadOutcome.ABSENT))
    assert eventually(lambda: opened.fleet.state().lent_bytes == 0)


@pytest.mark.parametrize("role", ["master", "node"])
def test_mooncake_is_killed(own_mooncake: MooncakeServers, role: str) -> None:
    opened = filled(own_mooncake.url)
    process: ServerProcess = getattr(own_mooncake, role)
    process.kill()
    outcome = opened.outcome(PAGES[0])
    assert outcome is not ReadOutcome.EXACT or role == "master", "the client may know the node without the master"
    assert opened.fleet.write([], [NEW]).stored == (False,)
    assert eventually(lambda: opened.fleet.state().lent_bytes == 0), "each call returns at last"
