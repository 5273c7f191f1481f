"""Tests that idle namespaces make room in a full table, and what is logged if none is idle."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from bare_engine import Engine
from core_records import header_with
from disk_daemon import DiskDaemon
from eventually import eventually
from metrics_scrape import scrape, value
from pagetier.client import Client, Keys
from pagetier.daemon.common import loop_clock
from pagetier.daemon.config.schema import IndexOptions
from pagetier.daemon.index.idle_namespaces import IdleNamespaces
from pagetier.shm._core import IdleResult, IdleStep, IndexHeader
from running_daemon import RunningDaemon, namespace
from virtual_time_loop import OwnTimeLoop

TABLE = 8
IDLE = ("--constant", f"index.namespaces={TABLE}", "--constant", "index.namespace_idle=2")
AT_ONCE = ("--constant", "index.namespace_idle=0.001")
DAY = ("--constant", f"index.namespaces={TABLE}", "--constant", "index.namespace_idle=86400")


def keys_of(name: str) -> Keys:
    return namespace(salt=name).keys(range(32))


def store(client: Client, name: str) -> int:
    """Stores the two pages of a namespace and returns how many of them are stored then."""
    return len(keys_of(name)) - client.store(keys_of(name), [b"x"] * 2).refused


def has(client: Client, name: str) -> bool:
    with client.match(keys_of(name)) as match:
        return len(match) > 0


@pytest.fixture
def full(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[RunningDaemon, Client]]:
    """Yields a daemon whose table is full of namespaces with pages, named "0" to "7"."""
    with (
        RunningDaemon("1MiB", "4KiB", *request.param, "--set", f"metrics.listen={tmp_path / 'metrics'}") as daemon,
        daemon.client() as client,
    ):
        for number in range(TABLE):
            assert store(client, str(number)) == 2
        yield daemon, client


def test_a_namespace_is_idle_after_ten_minutes() -> None:
    """As docs/contract.md says. The other tests have a time of their own."""
    assert IndexOptions().namespace_idle == 600.0


@pytest.mark.parametrize("full", [IDLE], indirect=True)
def test_an_idle_namespace_makes_room_for_a_new_one(full: tuple[RunningDaemon, Client], tmp_path: Path) -> None:
    """Regression: after a thousand updates of weights, no new namespace was stored until an administrator flushed."""
    daemon, client = full
    assert eventually(lambda: has(client, "7") and store(client, "new") == 2)
    assert has(client, "7"), "it was in use"
    assert not has(client, "0")
    line = daemon.lines("namespace_dropped")[0]
    assert "the table is full (8): 2 pages evicted" in line and "namespace=" in line
    metrics = scrape(tmp_path / "metrics")
    assert value(metrics, "pagetier_namespaces_dropped_total") >= 1
    assert value(metrics, "pagetier_namespaces_limit") == TABLE


def test_new_namespaces_replace_idle_ones_as_fast_as_they_come() -> None:
    """Regression: of a full table 20 namespaces a second were dropped, and stores of all other new ones rejected."""
    daemon = RunningDaemon("16MiB", "4KiB", "--constant", "index.namespaces=256", *AT_ONCE)
    with daemon, daemon.client() as client:
        for number in range(256):
            assert store(client, str(number)) == 2
        assert [store(client, f"new {number}") for number in range(1000)] == [2] * 1000
        assert daemon.header().spaces == 256


@pytest.mark.parametrize("full", [DAY], indirect=True)
def test_recently_used_namespaces_make_no_room(full: tuple[RunningDaemon, Client], tmp_path: Path) -> None:
    daemon, client = full
    for name in ("new", "newer"):
        refused = client.store(keys_of(name), [b"x"] * 2)
        assert "the table of 8 namespaces is full" in refused.reason
        assert "unused for 1d are dropped: retry later, or use fewer namespaces at once" in refused.reason
    assert eventually(lambda: bool(daemon.lines("event=namespaces_full")))
    assert all(has(client, str(number)) for number in range(TABLE))
    metrics = scrape(tmp_path / "metrics")
    assert value(metrics, "pagetier_namespaces_rejected_total") == 2
    assert value(metrics, "pagetier_namespaces_dropped_total") == 0
    (line,) = daemon.lines("event=namespaces_full")  # a line a minute is enough
    assert "let engines use fewer namespaces at once" in line


@pytest.mark.parametrize("full", [DAY], indirect=True)
def test_a_flushed_namespace_makes_room_at_once(full: tuple[RunningDaemon, Client]) -> None:
    daemon, client = full
    assert store(client, "new") == 0
    digest = keys_of("3").namespace.digest.hex()
    daemon.pagetier("flush", "--namespace", digest, "--yes")
    assert store(client, "new") == 2
    assert [has(client, str(number)) for number in range(TABLE)].count(False) == 1


def test_pages_of_a_dropped_namespace_are_not_back_after_a_restart() -> None:
    daemon = DiskDaemon(16, "64MiB", "--constant", "index.namespaces=1")
    with daemon, Engine(daemon) as engine, daemon.client() as client:
        daemon.store_through(engine, range(8))
        assert daemon.snapshot().tiers.disk.pages == 8
        daemon.kill()
        daemon.open(*AT_ONCE)
        assert eventually(lambda: not daemon.snapshot().tiers.disk.pages), daemon.reported()
        assert daemon.save().synced  # the worker has dropped them, too
        daemon.kill()
        daemon.open()
        assert eventually(lambda: store(client, "new") == 2)
        assert daemon.save().synced
        daemon.kill_worker()
        daemon.wait_open(1)
        assert engine.places(range(8)) == {"nowhere": 8}
        (space,) = daemon.snapshot().namespaces
        assert (space.digest, space.disk_pages) == (keys_of("new").namespace.digest.hex(), 2)


@pytest.mark.parametrize("full", [DAY], indirect=True)
def test_doctor_warns_of_a_table_that_is_nearly_full(full: tuple[RunningDaemon, Client]) -> None:
    daemon, _ = full

    def finding() -> str:
        output = daemon.pagetier("doctor").output
        (line,) = re.findall("^(?:ok|warning|problem) +namespaces .*$", output, re.MULTILINE)
        return str(line)

    assert finding().startswith("warning") and "8 of 8 namespaces have pages" in finding()
    assert "let engines use fewer namespaces" in finding()
    for name in ("5", "6"):
        digest = keys_of(name).namespace.digest.hex()
        daemon.pagetier("flush", "--namespace", digest, "--yes")
    assert finding().startswith("ok") and "6 of 8" in finding()


class Table:
    """A fake owner and disk tier: a table of namespaces with room. It notes when it was checked."""

    def __init__(self) -> None:
        self.checks: list[float] = []

    def header(self) -> IndexHeader:
        return header_with(spaces=TABLE)

    def spare_spaces(self) -> int:
        self.checks.append(loop_clock.now())
        return TABLE


@pytest.mark.usefixtures("virtual_time")
async def test_the_table_is_checked_once_a_second_and_at_once_after_a_rejection() -> None:
    table = Table()
    namespaces = IdleNamespaces(table, IndexOptions(), table)  # type: ignore[arg-type]
    for turn in range(50):
        namespaces.poll()
        if turn == 30:
            namespaces.reject()
        await loop_clock.pause(0.06)
    assert table.checks == pytest.approx([0.0, 1.02, 1.86, 2.88])


class LargeNamespace(Table):
    """A fake owner with an idle namespace whose pages take a hundred steps of 1.5 ms to drop."""

    def __init__(self, time: OwnTimeLoop) -> None:
        super().__init__()
        self._time = time
        self.steps = 0

    def drop_idle(self, idle_ns: int, budget: int) -> IdleStep:
        self.steps += 1
        self._time.passes(0.0015)
        return IdleStep(IdleResult.MORE if self.steps < 100 else IdleResult.NOTHING, 0, None)


async def test_a_large_namespace_is_dropped_in_slices_between_which_other_requests_are_handled(
    virtual_time: OwnTimeLoop,
) -> None:
    table = LargeNamespace(virtual_time)
    namespaces = IdleNamespaces(table, IndexOptions(), table)  # type: ignore[arg-type]
    assert not namespaces.make_room()
    assert table.steps == 2, "a slice has two milliseconds, and ends with the step after which they are over"
