"""Tests power losses at any moment: the disk has what was synced and any part of the rest."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import pytest

from disk_daemon import FRAME, write_through
from disk_stores import STORE_KINDS, StoreKind, settings_of
from eventually import PATIENCE_S
from oracle.journal import Journal
from oracle.witness import Witness
from power_loss.disk_model import History
from power_loss.losses import Way, choose, choose_names
from power_loss.mutants import MISTAKES
from power_loss.recording import can_record, record, recording
from power_loss.trials import Tally, Wanted, results
from power_loss.workload import LIVES, SEED, TERMS, Terms
from power_loss.write_stream import read_stream
from running_daemon import namespace
from seeded_random import chance

ALL = os.environ.get("POWER") == "all"
STATES = 6000 if ALL else 80
AGAIN = 1500 if ALL else 40
OF_A_DAEMON = 600 if ALL else 20
Recorder = Callable[[str, object], None]
each_store = pytest.mark.parametrize("store", STORE_KINDS)
# Bugs of a tier while it is recorded, and bugs of a tier that opens the remains.
OF_WRITERS: list[tuple[str, StoreKind]] = [
    *product(("reports a sync without syncing", "marks its files dirty in memory only"), STORE_KINDS),
    ("syncs no bytes of frames", "files"),
    ("syncs no bytes of frames", "compressed"),
    ("writes records before bytes", "files"),
    ("writes records before bytes", "compressed"),
]
# A death of the process alone finds it, as it replaces a page: its old bytes would still be there.
WAYS_OF_WRITERS = {"writes records before bytes": Way.NOTHING_LOST}
OF_OPENERS = {"trusts files without verification": Way.METAS_FIRST, "verifies no checksum": Way.VALUES_LOST}
TOO_EARLY = "discards unsound parts after it marked them as clean"

pytestmark = pytest.mark.skipif(not can_record(), reason="no compiler for the recorder is installed")


def recorded_stream(folder: Path, store: StoreKind, lives: tuple[str, ...] = tuple(LIVES), mistake: str = "") -> Path:
    """Records the workload of a tier in folder/tier and returns the stream."""
    for life in lives:
        record("power_loss.workload", folder / "tier", folder / "stream", life, mistake, store)
    return folder / "stream"


def tried(stream: Path, store: StoreKind, count: int, module: str = "power_loss.runs", **more: Any) -> Tally:
    """Runs this many power losses and returns the results."""
    more = {"terms": Terms(cap=TERMS.cap, store=store)} | more
    paths = {"stream": str(stream), "folder": str(stream.with_name("tier"))}
    wanted = Wanted(**{"seed": int(chance().integers(1 << 31)), "count": count, **paths, **more})
    return results(module, wanted)


@each_store
def test_the_recorder_records_all_changes(tmp_path: Path, store: StoreKind) -> None:
    """The stream leads to the existing files, except for the lock files, which are mapped and always rebuilt."""
    folder = tmp_path.resolve()
    events = read_stream(recorded_stream(folder, store))
    history, way = History(events, folder / "tier"), Way.NOTHING_LOST
    left = history.left(len(events), choose(way, Random(1)), choose_names(way, Random(1)))
    tier = folder / "tier"
    there = {path.relative_to(tier): None if path.is_dir() else path.read_bytes() for path in tier.rglob("*")}
    assert left.keys() == there.keys()
    assert {path for path in there if left[path] != there[path]} <= {Path("0/lock.mdb"), Path("1/lock.mdb")}
    assert len(history.boundaries()) > 60


@each_store
def test_exact_bytes_or_a_miss(tmp_path: Path, store: StoreKind, record_property: Recorder) -> None:
    """Every kind of end occurs, the rarest about five times in 80 losses: it may take a few more."""
    stream = recorded_stream(tmp_path.resolve(), store)
    lacking = {"as it was left", "proven sound", "rebuilt", "rebuilt in part"}
    for seed in map(int, chance().integers(1 << 31, size=10)):
        tally = tried(stream, store, STATES, seed=seed)
        assert tally.violations == []
        states, pages = tally.counts["states"], tally.counts["pages"]
        assert sum(states.values()) == STATES
        assert 0 < pages["must"] <= pages["exact"]
        lacking -= states.keys()
        if not lacking:
            break
    assert not lacking
    record_property("counted", {"power losses": STATES})


@pytest.mark.parametrize(("mistake", "store"), OF_WRITERS)
def test_a_tier_that_does_not_sync_is_found(tmp_path: Path, mistake: str, store: StoreKind) -> None:
    stream = recorded_stream(tmp_path.resolve(), store, ("fill",), mistake)
    assert tried(stream, store, 400, violations=1, seed=1, way=WAYS_OF_WRITERS.get(mistake)).violations


@pytest.mark.parametrize(("mistake", "way"), OF_OPENERS.items())
@each_store
def test_a_tier_that_trusts_its_files_is_found(tmp_path: Path, mistake: str, way: Way, store: StoreKind) -> None:
    stream = recorded_stream(tmp_path.resolve(), store, ("fill",))
    assert tried(stream, store, 400, violations=1, seed=1, mistake=mistake, way=way).violations


@each_store
def test_a_recovery_may_be_interrupted(tmp_path: Path, store: StoreKind, record_property: Recorder) -> None:
    """A recovery is interrupted by a death at any call of the opening, or by another power loss."""
    tally = tried(recorded_stream(tmp_path.resolve(), store), store, AGAIN, "power_loss.crash_in_recovery")
    assert tally.violations == []
    assert sum(tally.counts["states"].values()) == AGAIN
    record_property("counted", {"interrupted recoveries": AGAIN})


def test_a_tier_that_is_trusted_too_early_is_found(tmp_path: Path) -> None:
    """The files of frames do not show it in 1,000 trials: what LMDB has beside them is small and seldom damaged."""
    stream = recorded_stream(tmp_path.resolve(), "lmdb", ("fill",))
    assert tried(
        stream, "lmdb", 200, "power_loss.crash_in_recovery", violations=1, seed=1, mistake=TOO_EARLY
    ).violations


def test_every_bug_is_tested() -> None:
    assert {"", TOO_EARLY, *(mistake for mistake, _ in OF_WRITERS), *OF_OPENERS} == set(MISTAKES)


@each_store
def test_power_losses_of_a_real_worker_break_no_promise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: StoreKind
) -> None:
    """Records the worker of a real daemon to which an engine stores."""
    folder = tmp_path.resolve()
    for name, value in recording(folder / "tier", folder / "stream").items():
        monkeypatch.setenv(name, value)
    pages = namespace().keys(range(16 * 40))
    with write_through(*settings_of(store), disk=folder / "tier") as daemon:
        monkeypatch.undo()
        with daemon.client() as client, Journal(folder / "witness.journal") as journal:
            witness = Witness(client, journal, SEED, FRAME - 8)
            for first in range(0, len(pages), 8):
                witness.store(pages[first : first + 8], timeout=PATIENCE_S)
                daemon.until_written()
    (folder / "keys").write_bytes(pages.data)
    terms = Terms(cap=64 << 20, frame=FRAME, store=store)
    tally = tried(folder / "stream", store, OF_A_DAEMON, keys=str(folder / "keys"), terms=terms)
    assert tally.violations == []
    assert tally.counts["pages"]["exact"] > 0
