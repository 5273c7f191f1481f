"""Engines whose ranks divide layers or the computation of a prompt: pipelines, and context parallelism."""

from __future__ import annotations

import signal
from pathlib import Path

import msgspec
import pytest

import sglang_parallel
from disk_daemon import DiskDaemon
from eventually import eventually
from running_daemon import RunningDaemon
from sglang_engine import SglangEngine
from sglang_model import Restored, Spec, computed, place_of, whole
from sglang_parallel import DRAFTS, LAYERS, PIPELINES, REPLICAS, TOKENS

pytest_plugins = ("sglang_daemon",)
PAGES = 8
ROOM = {"dsa": "3MiB", "dsa-fp8": "6MiB", "dsv4": "24MiB"}
"""Memory for about a half of six prompts, or fewer."""
PIPELINE = PIPELINES.hicache[0]
SPARSE = Spec("dsa", 64, ranks=2, stages=2, layout="page_first")


def pages_of(spec: Spec) -> int:
    """Returns the number of pages in a prompt, of which the pools of a test have room for two."""
    return PAGES // 2 if spec.kind == "dsv4" else PAGES


def agreed(results: list[Restored]) -> Restored:
    """Returns the result of all processes, after asserting that it is one, and that what was loaded is right."""
    assert len(set(results)) == 1, results
    assert results[0].equal == (results[0].loaded > 0) and not results[0].failed, results
    return results[0]


def stored_by(daemon: DiskDaemon) -> dict[int, int]:
    """Returns how many pages each process has stored."""
    return {slot.pid: slot.counts.stored_pages for slot in daemon.slots()}


@pytest.mark.parametrize("spec", [*PIPELINES.hicache, *DRAFTS], ids=lambda spec: spec.name)
def test_each_stage_loads_its_own_layers(daemon: DiskDaemon, spec: Spec) -> None:
    """In this engine and in a new process, from memory and from disk."""
    pages, flags = pages_of(spec), {"speculative_algorithm": "EAGLE" if spec.draft else None}
    with SglangEngine(spec, daemon.socket, flags=flags) as engine:
        for number in (1, 2):
            engine.insert(number, pages)
        engine.reset_with_host()
        assert engine.restore(1, pages) == whole(spec, pages)
        assert not any(result.hit or result.loaded for result in engine.restore(3, pages))
        assert not any(engine.leaked()) and "Traceback" not in engine.log, engine.log
    with SglangEngine(spec, daemon.socket, flags=flags) as other:
        assert other.restore(2, pages) == whole(spec, pages)
        daemon.save()
        daemon.flush("memory")
        other.reset_with_host()
        assert other.restore(1, pages) == whole(spec, pages)


@pytest.mark.parametrize(
    "spec",
    [*PIPELINES.hicache[:7:3], Spec("dsa", 64, stages=2, layout="page_first"), DRAFTS[1]],
    ids=lambda spec: spec.name,
)
@pytest.mark.parametrize("stage", [0, 1])
def test_a_page_counts_only_if_all_stages_have_it(daemon: DiskDaemon, spec: Spec, stage: int) -> None:
    with SglangEngine(spec, daemon.socket) as engine:
        engine.insert(1, PAGES)
        engine.reset()
        assert agreed(engine.restore(1, PAGES)).loaded == PAGES * spec.page
        engine.reset()
        assert eventually(lambda: any(engine.drop_of_stage(stage, "kv"))), "pages on their way to disk stay"
        assert agreed(engine.restore(1, PAGES)).loaded == 0
        engine.insert(1, PAGES)
        engine.reset()
        assert engine.restore(1, PAGES) == whole(spec, PAGES), "what one stage lacked is stored again"


@pytest.mark.parametrize(("kind", "pages"), [("swa", 5), ("mamba", 3)])
@pytest.mark.parametrize("number", [0, 3])
def test_all_stages_load_what_the_one_with_the_fewest_pages_has(
    daemon: DiskDaemon, kind: str, pages: int, number: int
) -> None:
    """There are states after 3 and 8 pages only."""
    spec = Spec(kind, 16, ranks=2, stages=2, layout="page_first")
    with SglangEngine(spec, daemon.socket) as engine:
        engine.insert(1, 3)
        engine.insert(1, PAGES)
        engine.reset()
        engine.find_at_most(number, 5)
        assert agreed(engine.restore(1, PAGES)).loaded == pages * spec.page


@pytest.mark.parametrize(
    ("spec", "prompts", "memory"),
    [
        (PIPELINE, 12, "4MiB"),
        *((spec, 6, ROOM[spec.kind]) for spec in (*PIPELINES.hicache[-3:], *DRAFTS[2:])),
    ],
    ids=lambda one: one.name if isinstance(one, Spec) else "",
)
def test_stages_that_evict_differently_agree(spec: Spec, prompts: int, memory: str) -> None:
    """The memory has room for a part of the prompts, so that some pages are there for one stage only."""
    with RunningDaemon(memory, "64KiB") as daemon, SglangEngine(spec, daemon.socket) as engine:
        for number in range(prompts):
            engine.insert(number, pages_of(spec))
            engine.reset()
            if number % 3 == 0:
                engine.find_in_stage(number % 2, number)  # the other stage does not use them, and evicts them sooner
        loaded = 0
        for number in range(prompts):
            loaded += agreed(engine.restore(number, pages_of(spec))).loaded
            engine.reset()
        assert 0 < loaded < prompts * pages_of(spec) * spec.page, "the memory has to hold a part"
        assert not any(engine.leaked()) and "Traceback" not in engine.log, engine.log


def test_stages_of_which_one_fails_agree() -> None:
    """SGLang's own faults end calls of each process at random."""
    faults = {"SGLANG_TEST_HICACHE_BACKEND_RANDOM_FAILURE": "0.1", "SGLANG_TEST_HICACHE_BACKEND_RANDOM_DELAY": "0.02"}
    with (
        RunningDaemon("64MiB", "4KiB") as daemon,
        SglangEngine(PIPELINE, daemon.socket, environment=faults) as engine,
    ):
        threads, restored = engine.threads(), 0
        for number in range(16):
            engine.insert(number, 4)
            engine.reset()
            restored += agreed(engine.restore(number, 4)).loaded
        assert restored, "too few pages survived to say anything"
        assert engine.threads() == threads and not any(engine.leaked()), engine.log


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_stages_without_a_daemon_agree(number: signal.Signals) -> None:
    with RunningDaemon("64MiB", "4KiB") as daemon, SglangEngine(PIPELINE, daemon.socket, timeout=2.0) as engine:
        engine.insert(1, PAGES)
        engine.reset()
        daemon.signal(number)
        engine.insert(2, PAGES)
        engine.reset()
        for prompt in (1, 2):
            agreed(engine.restore(prompt, PAGES))
        if number is signal.SIGKILL:
            daemon.wait()
            daemon.start()
        else:
            daemon.signal(signal.SIGCONT)
        assert eventually(lambda: engine.reset() and engine.restore(1, PAGES) == whole(PIPELINE, PAGES))
        assert not any(engine.leaked()) and "Traceback" not in engine.log, engine.log


@pytest.mark.parametrize("mode", ["prefill", "decode"])
def test_engines_that_share_the_work_of_a_request_share_its_pages(daemon: DiskDaemon, mode: str) -> None:
    """With HiCache both have pages from the store, in each stage."""
    flags = {"disaggregation_mode": mode, "disaggregation_decode_enable_radix_cache": mode == "decode"}
    with SglangEngine(PIPELINE, daemon.socket, flags=flags) as engine:
        engine.insert(1, PAGES)
        engine.reset()
        assert engine.restore(1, PAGES) == whole(PIPELINE, PAGES)
    with SglangEngine(PIPELINE, daemon.socket) as engine:
        assert engine.restore(1, PAGES) == whole(PIPELINE, PAGES)


@pytest.mark.parametrize("stages", [1, 3])
def test_other_stages_have_other_pages(daemon: DiskDaemon, stages: int) -> None:
    """Pages of two of six layers, of three and of all six are three kinds of pages."""
    other = msgspec.structs.replace(PIPELINE, stages=stages)
    with SglangEngine(PIPELINE, daemon.socket) as engine:
        engine.insert(1, PAGES)
    with SglangEngine(other, daemon.socket) as engine:
        assert not agreed(engine.restore(1, PAGES)).loaded


def test_stages_of_unequal_layers_have_pages_of_their_own(daemon: DiskDaemon) -> None:
    """Seven layers, of which one stage has two and the other five, are other pages in the other order."""
    for layers in ((2, 5), (5, 2)):
        spec = Spec("mha", 16, stages=2, layout="page_first", layers=layers)
        partition = {"SGLANG_PP_LAYER_PARTITION": ",".join(map(str, layers))}
        with SglangEngine(spec, daemon.socket, environment=partition) as engine:
            assert not agreed(engine.restore(1, PAGES)).loaded
            engine.insert(1, PAGES)
            engine.reset()
            assert engine.restore(1, PAGES) == whole(spec, PAGES)


@pytest.mark.parametrize(
    ("spec", "forgotten"),
    [(PIPELINE, "stage"), (DRAFTS[0], "draft"), (msgspec.structs.replace(SPARSE, ranks=1), "index of the host")],
)
def test_a_forgotten_stage_draft_or_index_is_noticed(daemon: DiskDaemon, spec: Spec, forgotten: str) -> None:
    """Stages without pages of their own load those of another one, and the comparison sees it."""
    tokens = PAGES * spec.page
    with SglangEngine(spec, daemon.socket, forget=forgotten) as engine:
        engine.insert(1, PAGES)
        engine.reset_with_host()
        results = engine.restore(1, PAGES)
        assert {result.loaded for result in results} == {tokens} and not all(result.equal for result in results)


def test_sglang_compares_no_stages_of_a_linker(daemon: DiskDaemon) -> None:
    """Why the linker refuses pipelines. Once this fails, SGLang may have a way to agree among the stages."""
    spec = Spec("mha", 16, stages=2)
    with SglangEngine(spec, daemon.socket, forget="pipelines") as engine:
        engine.insert(1, PAGES)
        engine.reset()
        assert engine.match_only("waiting", 1, PAGES) == [PAGES * spec.page] * 2
        engine.leave(1)
        assert engine.queue_matched("waiting") == [PAGES * spec.page, 0], "one stage loads what the other computes"
        engine.reset()
        engine.find_at_most(1, 3)
        assert engine.match_only("again", 1, PAGES)[0] == PAGES * spec.page


@pytest.mark.parametrize("spec", [*REPLICAS.linker, *REPLICAS.hicache], ids=lambda spec: spec.name)
def test_the_first_of_the_replicas_stores_and_all_load(daemon: DiskDaemon, spec: Spec) -> None:
    """The others have written other bytes into their pools, of which none may be found."""
    with SglangEngine(spec, daemon.socket) as engine:
        before = stored_by(daemon)
        engine.insert(1, PAGES)
        after = stored_by(daemon)
        replicas = {pid for number, pid in enumerate(engine.pids) if place_of(spec, number).context}
        assert {pid for pid, stored in after.items() if stored > before[pid]}.isdisjoint(replicas)
        engine.reset()
        assert engine.restore(1, PAGES) == whole(spec, PAGES)
        assert not any(result.loaded for result in engine.restore(2, PAGES))
    with SglangEngine(msgspec.structs.replace(spec, contexts=1), daemon.socket) as alone:
        assert alone.restore(1, PAGES) == whole(alone.spec, PAGES), "engines without replicas share the pages"


@pytest.mark.parametrize("number", range(4))
def test_no_replica_loads_what_one_of_them_cannot(daemon: DiskDaemon, number: int) -> None:
    spec = Spec("mha", 16, ranks=2, contexts=2)
    with SglangEngine(spec, daemon.socket) as engine:
        engine.insert(1, PAGES)
        engine.reset()
        assert set(engine.match_only("waiting", 1, PAGES)) == {PAGES * spec.page}
        engine.leave(number)
        assert engine.queue_matched("waiting") == [0] * spec.processes
        assert agreed(engine.restore(1, PAGES)) == computed(spec)[0]


@pytest.mark.parametrize("spec", [*TOKENS.linker, *LAYERS.linker], ids=lambda spec: spec.name)
def test_each_rank_loads_its_own_tokens_or_layers(daemon: DiskDaemon, spec: Spec) -> None:
    """In this engine and in a new process, from memory and from disk, and every byte of every buffer is compared."""
    with SglangEngine(spec, daemon.socket) as engine:
        for number in (1, 2):
            assert min(engine.insert(number, PAGES)) >= 1
        engine.reset()
        assert engine.restore(1, PAGES) == whole(spec, PAGES)
        assert engine.restore(3, PAGES) == computed(spec)
        assert not any(engine.leaked()) and "Traceback" not in engine.log, engine.log
    with SglangEngine(spec, daemon.socket) as other:
        assert other.restore(2, PAGES) == whole(spec, PAGES)
        daemon.save()
        daemon.flush("memory")
        other.reset()
        assert eventually(lambda: other.restore(1, PAGES) == whole(spec, PAGES))


@pytest.mark.parametrize("spec", [TOKENS.linker[0], LAYERS.linker[0]], ids=lambda spec: spec.name)
@pytest.mark.parametrize("number", [0, 1])
def test_a_page_counts_only_if_all_ranks_have_their_share(daemon: DiskDaemon, spec: Spec, number: int) -> None:
    with SglangEngine(spec, daemon.socket) as engine:
        engine.insert(1, PAGES)
        engine.reset()
        assert eventually(lambda: any(engine.drop_of(number, "kv"))), "pages on their way to disk stay"
        assert engine.restore(1, PAGES) == computed(spec)
        engine.insert(1, PAGES)
        engine.reset()
        assert engine.restore(1, PAGES) == whole(spec, PAGES)


@pytest.mark.parametrize(("spec", "forgotten"), [(TOKENS.linker[0], "tokens"), (LAYERS.linker[0], "layers")])
def test_a_forgotten_share_is_noticed(daemon: DiskDaemon, spec: Spec, forgotten: str) -> None:
    """Ranks without pages of their own load those of another one, or none, and the comparison sees it."""
    with SglangEngine(spec, daemon.socket, forget=forgotten) as engine:
        engine.insert(1, PAGES)
        engine.reset()
        assert engine.restore(1, PAGES) != whole(spec, PAGES)


def test_recurrent_state_of_context_ranks_is_refused(daemon: DiskDaemon) -> None:
    with SglangEngine(Spec("mamba", 16, ranks=1, contexts=2, layout="page_first"), daemon.socket) as engine:
        assert "recurrent layers divided by context parallelism" in engine.log, engine.log


def test_the_document_has_the_table() -> None:
    assert sglang_parallel.table() in (Path(__file__).parents[2] / "docs" / "models.md").read_text()
