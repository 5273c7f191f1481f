"""SGLang on two hosts that share a folder of objects: what one computes, the other finds, through both doors."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

import fleet_host
from eventually import PATIENCE_S, eventually
from fleet_host import PATIENT, FleetHost
from sglang_engine import SglangEngine
from sglang_families import SPECS
from sglang_model import Spec, computed, whole

PAGE, PAGES = 64, 6
SHORT = 3  # pages with less than 256 tokens
KINDS = ("mha", "swa", "mamba")
ROWS = ("dsa", "dsa-fp8", "dsv4", "dsv4.1", "minimax-m3")
RANKS = {"": (1, 2, 4), "packed": (1, 2), "side": (1, 2)}
"""The numbers of ranks, by the draft beside the model."""
SHARES = (Spec("mla-fp8", PAGE, ranks=2, splits=2), Spec("dsa-split", PAGE, contexts=3))
"""Engines in which each rank has pages of its own: it has a part of the tokens, or of the layers."""
HANGS = pytest.mark.parametrize(
    "ask", [("--set", "remote.timeout=1h", "--set", "remote.ask_timeout=1h")]
)  # the daemon, too, waits for the store as long as it hangs


@pytest.fixture
def ask() -> tuple[str, ...]:
    """Returns how long the second daemon waits for an answer of the store."""
    return ("--set", "remote.ask_timeout=2s")  # for a busy machine


@pytest.fixture
def hosts(
    tmp_path: Path, ask: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[FleetHost, FleetHost]]:
    """Runs two daemons over one folder, whose calls take the seconds in the file `delay`."""
    monkeypatch.setenv("PYTHONPATH", str(Path(fleet_host.__file__).parent), prepend=os.pathsep)
    with ExitStack() as stack:
        url = f"python://slow_folder_store:SlowFolder{tmp_path}"
        second = FleetHost(url, stack, *ask, arena="64MiB")
        yield FleetHost(url, stack, *PATIENT, arena="64MiB"), second


def pages_of(spec: Spec) -> int:
    """Returns the length of the prompt in pages: at least the tokens for which the fleet is asked."""
    return max(PAGES, PAGE * PAGES // spec.page)


def compute(host: FleetHost, spec: Spec) -> None:
    """Stores a prompt on a host, and waits until the fleet has all of its pages."""
    with SglangEngine(spec, host.daemon.socket) as engine:
        assert min(engine.insert(1, pages_of(spec))) >= 1
        ranks = 1 if spec.kind == "mla" or spec.splits > 1 else spec.ranks  # HiCache's first rank stores the latents
        stored = sum(slot.counts.stored_pages for slot in host.daemon.slots()) // ranks
        assert eventually(lambda: host.report.written >= stored >= pages_of(spec)), host.report


def questions(host: FleetHost) -> int:
    report = host.report
    return report.found + report.absent + report.late


def tokens_by_tier(host: FleetHost) -> tuple[int, int, int]:
    """Returns the tokens that engines have found in memory, on disk and in the fleet."""
    counts = [slot.counts for slot in host.daemon.slots()]
    memory, disk, remote = (
        sum(getattr(one, f"{tier}_tokens") for one in counts) for tier in ("memory", "disk", "remote")
    )
    return memory, disk, remote


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("kind", [*KINDS, "dsa"])
def test_the_linker_finds_what_another_host_has_stored(
    hosts: tuple[FleetHost, FleetHost], kind: str, ranks: int
) -> None:
    find_what_another_host_has_stored(hosts, Spec(kind, PAGE, ranks=ranks))


@pytest.mark.parametrize(
    ("spec", "ranks"),
    [(spec, ranks) for spec in SPECS for ranks in RANKS[spec.draft] if spec.kind in ROWS],
    ids=lambda one: one.name if isinstance(one, Spec) else str(one),
)
def test_the_linker_finds_all_buffers_of_another_host(
    hosts: tuple[FleetHost, FleetHost], spec: Spec, ranks: int
) -> None:
    find_what_another_host_has_stored(hosts, msgspec.structs.replace(spec, ranks=ranks))


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("spec", SHARES, ids=lambda spec: spec.name)
def test_a_rank_whose_pages_were_evicted_reads_them_again(
    hosts: tuple[FleetHost, FleetHost], spec: Spec, number: int
) -> None:
    """The other ranks have theirs in memory, which none of them loads alone: all load or compute the same."""
    (here, there), pages = hosts, pages_of(spec)
    compute(here, spec)
    with SglangEngine(spec, there.daemon.socket) as engine:

        def restored() -> bool:
            result = engine.restore(1, pages)
            assert len(set(result)) == 1 and result[0].equal == (result[0].loaded > 0), result
            return bool(result == whole(spec, pages))

        assert eventually(restored)
        engine.reset()
        read = there.fresh_report().read
        assert eventually(lambda: any(engine.drop_of(number, "kv")))
        assert eventually(restored)
        assert eventually(lambda: there.report.read >= read + pages), "this rank has read its pages"
        assert "Traceback" not in engine.log, engine.log
    assert there.report.damaged == 0


@pytest.mark.parametrize("stage", [0, 1])
@pytest.mark.parametrize("kind", ["mha", "mla"])
def test_a_stage_whose_pages_were_evicted_reads_them_again(
    hosts: tuple[FleetHost, FleetHost], kind: str, stage: int
) -> None:
    """HiCache on two stages of two ranks: the other stage has its pages in memory, and both load the same prefix."""
    spec, (here, there) = Spec(kind, PAGE, ranks=2, stages=2, layout="page_first"), hosts
    compute(here, spec)
    with SglangEngine(spec, there.daemon.socket, timeout=PATIENCE_S) as engine:

        def restored() -> bool:
            engine.reset()
            results = engine.restore(1, PAGES)
            assert len(set(results)) == 1 and results[0].equal == (results[0].loaded > 0), results
            return bool(results == whole(spec, PAGES))

        assert eventually(restored)
        engine.reset()
        read = there.fresh_report().read
        assert eventually(lambda: any(engine.drop_of_stage(stage, "kv")))
        assert eventually(restored)
        assert eventually(lambda: there.report.read >= read + PAGES), "this stage has read its pages"
        assert not any(engine.leaked()) and "Traceback" not in engine.log, engine.log


def test_the_linker_finds_what_another_host_has_compressed(tmp_path: Path) -> None:
    """The first page of a host, at least, is compressed: it does not know yet how fast the store is."""
    with ExitStack() as stack:
        here, there = (FleetHost(f"file://{tmp_path}", stack, *PATIENT, arena="64MiB") for _ in range(2))
        find_what_another_host_has_stored((here, there), Spec("mha", 128, heads=8))
        assert 0 < here.report.stored_bytes < here.report.written_bytes


def find_what_another_host_has_stored(hosts: tuple[FleetHost, FleetHost], spec: Spec) -> None:
    """Stores a prompt on the first host, and loads it on the second."""
    (here, there), pages = hosts, pages_of(spec)
    compute(here, spec)
    with SglangEngine(spec, there.daemon.socket) as engine:
        assert engine.restore(1, pages) == computed(spec), "no request waits for the fleet"
        assert eventually(lambda: engine.restore(1, pages) == whole(spec, pages))
        assert "Traceback" not in engine.log, engine.log
    assert there.report.damaged == 0


def test_tokens_count_in_the_tier_that_had_them(hosts: tuple[FleetHost, FleetHost]) -> None:
    spec, (here, there), tokens = Spec("mha", PAGE), hosts, PAGE * PAGES
    compute(here, spec)
    with SglangEngine(spec, there.daemon.socket) as engine:
        assert engine.match_only("waiting", 1, PAGES) == [0]
        assert eventually(lambda: engine.match_only("waiting", 1, PAGES) == [tokens])
        assert engine.load_matched("waiting") == whole(spec, PAGES)
        assert tokens_by_tier(there) == (0, 0, tokens)
        engine.reset()
        assert engine.restore(1, PAGES) == whole(spec, PAGES)
        assert tokens_by_tier(there) == (tokens, 0, tokens)


def test_the_fleet_is_not_asked_for_a_short_prompt(hosts: tuple[FleetHost, FleetHost]) -> None:
    spec, (here, there) = Spec("mha", PAGE), hosts
    compute(here, spec)
    with SglangEngine(spec, there.daemon.socket, lease=600.0) as engine:
        for turn in range(20):
            assert engine.match_only(f"request {turn}", 1, SHORT) == [0]
        assert questions(there) == 0
        engine.match_only("longer", 1, PAGES)
        assert eventually(lambda: questions(there) == 1)
        for _ in range(20):
            engine.match_only("longer", 1, PAGES)
        assert questions(there) == 1, "a request does not ask again at once"


def test_a_request_that_waits_asks_again_after_its_lease(hosts: tuple[FleetHost, FleetHost]) -> None:
    spec, (here, there) = Spec("mha", PAGE), hosts
    with SglangEngine(spec, there.daemon.socket, lease=1.0) as engine:
        assert engine.match_only("waiting", 1, PAGES) == [0]
        assert eventually(lambda: there.report.absent == 1)
        compute(here, spec)
        assert eventually(lambda: engine.match_only("waiting", 1, PAGES) == [PAGE * PAGES])
        assert engine.load_matched("waiting") == whole(spec, PAGES)


@HANGS
def test_a_store_that_hangs_delays_no_lookup(hosts: tuple[FleetHost, FleetHost], tmp_path: Path) -> None:
    spec, (here, there) = Spec("mha", PAGE, ranks=2), hosts
    compute(here, spec)
    with SglangEngine(spec, there.daemon.socket) as engine:
        engine.insert(2, PAGES)
        engine.reset()
        (tmp_path / "delay").write_text("inf")
        for turn in range(10):
            assert engine.match_only(f"request {turn}", 1, PAGES) == [0] * 2
            assert engine.restore(2, PAGES) == whole(spec, PAGES), "pages of this host"
            engine.reset()
        assert "Traceback" not in engine.log, engine.log
        (tmp_path / "delay").unlink()


@pytest.mark.parametrize("ranks", [(1, 1), (2, 1), (2, 2)], ids=lambda ranks: "pp".join(map(str, ranks)))
@pytest.mark.parametrize("kind", [*KINDS, "mla"])
def test_hicache_finds_what_another_host_has_stored(
    hosts: tuple[FleetHost, FleetHost], kind: str, ranks: tuple[int, int]
) -> None:
    """On tensor-parallel ranks, in one pipeline stage and in several."""
    spec, (here, there) = Spec(kind, PAGE, ranks=ranks[0], stages=ranks[1], layout="page_first"), hosts
    compute(here, spec)
    with SglangEngine(spec, there.daemon.socket, timeout=PATIENCE_S) as engine:
        # An answer of the fleet that comes after 50 ms is a miss, as it may be on a busy machine.
        assert eventually(lambda: engine.reset() and engine.restore(1, PAGES) == whole(spec, PAGES))
        assert tokens_by_tier(there)[2] >= PAGE * PAGES, "another rank may find the pages on their way"
        assert not any(engine.leaked()) and "Traceback" not in engine.log, engine.log


@HANGS
def test_a_store_that_hangs_costs_hicache_its_timeout_at_most(
    hosts: tuple[FleetHost, FleetHost], tmp_path: Path
) -> None:
    spec, (here, there) = Spec("mha", PAGE, layout="page_first"), hosts
    compute(here, spec)
    with SglangEngine(spec, there.daemon.socket, timeout=0.5) as engine:
        (tmp_path / "delay").write_text("inf")
        assert engine.restore(1, PAGES) == computed(spec)
        assert not any(engine.leaked()) and "Traceback" not in engine.log, engine.log
        (tmp_path / "delay").unlink()
