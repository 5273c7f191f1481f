"""Tests that operators see which page leaves memory first: in statistics, metrics, the log and the settings."""

from __future__ import annotations

import json
import logging
import resource
from pathlib import Path
from typing import Any

import pytest

from eventually import PATIENCE_S, eventually
from keyed_pages import prompt
from learning_index import LearningIndex
from leaving_out import small_daemon, until_left_out, use
from metrics_scrape import scrape, value
from pagetier.daemon.common.log_throttle import MINUTE_S
from pagetier.daemon.config.schema import EvictOptions
from pagetier.daemon.index.evictor import Evictor
from pagetier.daemon.status.eviction_report import EvictionState
from replay_command import Chain, replay_json, write_trace
from running_daemon import RunningDaemon
from virtual_time_loop import OwnTimeLoop

FLAGS = ("--set=evict.free=0",)
LEARNED = {"choosing", "following lru"}
DEFAULT, LRU = "", '[evict]\npolicy = "lru"\n'


def eviction(daemon: RunningDaemon) -> dict[str, Any]:
    """Returns what `pagetier stats --json` says of the eviction."""
    values: dict[str, Any] = json.loads(daemon.pagetier("stats", "--json").stdout)
    return dict(values["eviction"])


def shows(daemon: RunningDaemon, states: set[str]) -> bool:
    """Returns whether one of these states of the eviction is shown soon."""
    return eventually(lambda: eviction(daemon)["state"] in states)


def rounds(count: int) -> list[Chain]:
    """Returns prompts of which five return in each round, beside one that never does."""
    returning = [[prompt * 100 + page for page in range(10)] for prompt in range(5)]
    once = [[10_000 + turn * 100 + page for page in range(30)] for turn in range(count)]
    return [chain for new in once for chain in (*returning, new)]


def until_lru_is_followed(loop: OwnTimeLoop) -> tuple[LearningIndex, Evictor]:
    """Returns an index whose guard has just turned to LRU. The policy draws at random, so not every index gets there.

    Prompts that fill the memory return in each round, and others never do, so that new pages are left out. Then the
    others return, soon, as LRU likes it.
    """
    for _ in range(60):
        engine = LearningIndex(1024)
        evictor = Evictor(engine.owner, EvictOptions(), loop)
        for turn in range(100):
            for number in range(98):
                engine.use([number, *range(9)])
            engine.use([1000 + turn, *range(31)])
        assert evictor.poll().state in {EvictionState.LEARNING, EvictionState.CHOOSING}
        for turn in range(200):
            engine.use([2000 + turn, *range(20)])
            engine.use([2000 + max(0, turn - 20), *range(20)])
            if evictor.report().state is EvictionState.FOLLOWING_LRU:
                return engine, evictor
    raise AssertionError("the guard did not turn to LRU in 60 indexes")


def limit_memory(daemon: RunningDaemon, more: int) -> None:
    """Limits the daemon to what it has mapped and `more` bytes; -1: no limit."""
    assert daemon.process is not None
    pages = int(Path(f"/proc/{daemon.process.pid}/statm").read_text().split()[0])
    most = resource.RLIM_INFINITY if more < 0 else pages * resource.getpagesize() + more
    resource.prlimit(daemon.process.pid, resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))


def test_lru_is_shown_where_memory_is_too_short_to_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_ARENA_MAX", "1")  # else 64 MiB of address space are reserved for each thread
    daemon = RunningDaemon("16MiB", "64KiB", "--set=index.entries=1000000")  # learning takes 52 MB
    daemon.config.write_text(LRU)
    with daemon:
        limit_memory(daemon, 24 << 20)
        reloaded = daemon.reload(DEFAULT)
        assert "evict.policy = cadence (lru runs, because memory is too short to learn)" in reloaded
        (line,) = daemon.lines("event=eviction_policy")
        assert "level=warning" in line and 'state="no memory"' in line
        assert eventually(lambda: eviction(daemon)["state"] == "no memory")
        shown = daemon.pagetier("config").stdout
        (setting,) = (line for line in shown.splitlines() if line.startswith("evict.policy"))
        assert setting.endswith("; lru runs, because memory is too short to learn")
        assert "memory is too short to learn" in daemon.pagetier("stats").stdout.replace("\n  ", " ")
        with daemon.client() as client:
            assert client.wait_attached(PATIENCE_S)
        limit_memory(daemon, -1)
        daemon.reload(LRU)
        assert "evict.policy = cadence" in (reloaded := daemon.reload(DEFAULT)) and "lru runs" not in reloaded
        assert eventually(lambda: eviction(daemon)["state"] == "learning")
        assert "lru runs" not in daemon.pagetier("config").stdout


def test_without_the_policy_lru_is_shown() -> None:
    with RunningDaemon("16MiB", "64KiB", "--set", "evict.policy=lru") as daemon:
        assert eviction(daemon) == {"policy": "lru", "state": "lru", "left_out": 0, "switches": 0}
        assert "evict.policy" not in daemon.pagetier("stats").stdout


def test_pages_that_were_left_out_are_shown_after_a_change_to_lru() -> None:
    daemon = small_daemon()
    daemon.config.write_text(DEFAULT)
    with daemon, daemon.client() as client:
        _, _, left_out = until_left_out(client)
        daemon.reload(LRU)
        assert shows(daemon, {"lru"})
        shown = daemon.pagetier("stats").stdout.replace("\n  ", " ")
        assert f"evict.policy = lru: the least recently used pages are evicted; {left_out:,} pages left out" in shown


@pytest.mark.parametrize(("arena", "frame"), [("64MiB", "64MiB"), ("16MiB", "1MiB"), ("64KiB", "4KiB")])
def test_a_small_arena_learns_and_changes_its_policy(arena: str, frame: str) -> None:
    daemon = RunningDaemon(arena, frame)
    daemon.config.write_text(DEFAULT)
    with daemon, daemon.client() as client:
        for text, states in ((DEFAULT, LEARNED), (LRU, {"lru"}), (DEFAULT, LEARNED)):
            daemon.reload(text)
            for turn in range(150):
                use(client, prompt(turn % 7, 2 + turn % 3))
                assert use(client, prompt(100 + turn, 1)).refused == 0
            assert shows(daemon, states)
            assert daemon.findings() == []


def test_the_policy_is_shown_as_it_learns_and_chooses(tmp_path: Path) -> None:
    trace, _ = write_trace(tmp_path / "rounds.jsonl.gz", rounds(400))
    metrics = tmp_path / "metrics.sock"
    with RunningDaemon("256KiB", "4KiB", *FLAGS, "--set", f"metrics.listen={metrics}") as daemon:
        assert eventually(lambda: eviction(daemon)["state"] == "learning")
        report = replay_json(trace, "--socket", daemon.socket)
        left_out = report["pages_left_out"]
        assert left_out > 0
        assert eventually(lambda: eviction(daemon)["left_out"] == left_out)
        assert eviction(daemon)["state"] in LEARNED
        assert f"{left_out:,} pages left out" in daemon.pagetier("stats").stdout.replace("\n  ", " ")
        assert "cadence" in daemon.pagetier("top").stdout
        assert daemon.lines("event=eviction_policy")
        seen = scrape(metrics)
        assert value(seen, "pagetier_left_out_pages_total") == left_out
        state = eviction(daemon)["state"]
        assert value(seen, "pagetier_eviction_policy", policy="cadence", state=state) == 1


def test_the_guard_is_counted_and_logged(caplog: pytest.LogCaptureFixture, virtual_time: OwnTimeLoop) -> None:
    caplog.set_level(logging.INFO)
    engine, evictor = until_lru_is_followed(virtual_time)
    virtual_time.passes(MINUTE_S)
    caplog.clear()
    assert evictor.poll().switches == 1
    assert evictor.poll().state is EvictionState.FOLLOWING_LRU
    (line,) = caplog.records
    assert line.getMessage().endswith("the least recently used pages are evicted for now, because that hits more")
    turn = 10_000
    while evictor.report().switches == 1:  # it tries again after a while
        engine.use([turn := turn + 1, *range(20)])
    assert evictor.poll().state is EvictionState.CHOOSING
    assert evictor.poll().switches == 2 and len(caplog.records) == 2
    engine.owner.forget_returns()
    assert evictor.report().switches == 2  # the counter outlives the policy
    engine.check()
