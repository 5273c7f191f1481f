"""A GPU without room for a load, and the memory of GPU, host and arena that transfers use until they have ended."""

from __future__ import annotations

from typing import Final

import pytest

from disk_daemon import DiskDaemon
from eventually import PATIENCE_S, eventually
from sglang_engine import SglangEngine
from sglang_model import Restored, Spec, computed, whole

pytest_plugins = ("sglang_daemon",)
PAGES: Final = 8
OTHERS: Final = range(10, 18)  # fill 1,024 slots and all recurrent states


def pins(daemon: DiskDaemon) -> int:
    """Returns the pins of all processes."""
    return sum(record.pins for record in daemon.slots())


def is_right(result: Restored, layout: str) -> bool:
    """Returns whether a prompt that may be on the GPU has its bytes. The linker compares what it loads only."""
    return result.equal if layout else result.equal == (result.loaded > 0)


def fill_gpu(engine: SglangEngine) -> None:
    """Stores a prompt that the GPU then lacks, and fills the GPU with others."""
    engine.insert(1, PAGES)
    engine.reset()
    for number in OTHERS:
        engine.insert(number, PAGES)
    assert not any(count for pool, count in engine.free_slots()[0].items() if not pool.startswith("host"))


def store_on_disk_only(engine: SglangEngine, daemon: DiskDaemon) -> None:
    """Stores a prompt that is then on disk, and neither in memory nor on the GPU."""
    engine.insert(1, PAGES)
    daemon.save()
    daemon.flush("memory")
    engine.reset()


def assert_nothing_is_used(engine: SglangEngine, daemon: DiskDaemon) -> None:
    """Asserts that all slots can be free, that nothing is pinned, and that no exception was logged."""
    leaked = engine.leaked()
    assert not any(leaked), leaked
    assert not pins(daemon)
    assert "Traceback" not in engine.log, engine.log


@pytest.mark.parametrize("layout", ["", "page_first"])
@pytest.mark.parametrize("kind", ["mha", "swa", "mamba"])
def test_a_load_evicts_what_is_in_its_way(daemon: DiskDaemon, kind: str, layout: str) -> None:
    spec = Spec(kind, 16, layout=layout)
    with SglangEngine(spec, daemon.socket) as engine:
        fill_gpu(engine)
        assert engine.restore(1, PAGES) == whole(spec, PAGES)
        results = [engine.restore(number, PAGES)[0] for number in OTHERS]
        assert all(is_right(result, layout) for result in results), results
        assert any(result.loaded for result in results), "nothing was evicted"
        assert_nothing_is_used(engine, daemon)
        assert [engine.restore(number, PAGES) for number in OTHERS] == [whole(spec, PAGES)] * len(OTHERS)


@pytest.mark.parametrize(
    ("kind", "layout"),
    [("mha", ""), ("swa", ""), ("mamba", ""), ("mha", "page_first"), ("swa", "page_first")],
)
def test_a_load_without_room_is_computed_and_works_later(daemon: DiskDaemon, kind: str, layout: str) -> None:
    spec = Spec(kind, 16, layout=layout)
    with SglangEngine(spec, daemon.socket, lease=0.5) as engine:
        fill_gpu(engine)
        for number in OTHERS:
            engine.lock(number, PAGES)
        assert engine.restore(1, PAGES) == [Restored(128, 0, equal=False, failed=False)]
        assert eventually(lambda: not any(engine.poll()) and not pins(daemon)), "SGLang did not load them"
        engine.unlock()
        (result,) = engine.restore(1, PAGES)
        assert result.equal and result.loaded == 128
        assert_nothing_is_used(engine, daemon)


@pytest.mark.parametrize("kind", ["swa", "mamba"])
def test_a_load_that_is_refused_frees_its_slots(daemon: DiskDaemon, kind: str) -> None:
    spec = Spec(kind, 16, ranks=2)
    with SglangEngine(spec, daemon.socket, lease=600.0) as engine:
        engine.insert(1, PAGES)
        assert engine.evict(1024) == [0, 0]
        assert engine.match_only("waiting", 1, PAGES) == [128, 128]
        engine.leave(1)
        assert engine.queue_matched("waiting") == [0, 0]
        assert engine.finish_queued("waiting") == [Restored(128, 0, equal=False, failed=False)] * 2
        assert_nothing_is_used(engine, daemon)


@pytest.mark.parametrize("kind", ["mha", "swa", "mamba"])
def test_a_prefetch_that_is_cancelled_releases_its_memory(daemon: DiskDaemon, kind: str) -> None:
    spec = Spec(kind, 16, layout="page_first")
    with SglangEngine(spec, daemon.socket, timeout=PATIENCE_S) as engine:
        store_on_disk_only(engine, daemon)
        with daemon.stopped_worker():
            assert engine.prefetch("cancelled", 1, PAGES) == [128]
            engine.release("cancelled")
        assert_nothing_is_used(engine, daemon)
        assert "req=cancelled" not in engine.log, "the prefetch has ended before"
        assert engine.restore(1, PAGES) == whole(spec, PAGES)


@pytest.mark.parametrize("kind", ["mha", "swa", "mamba"])
def test_a_prefetch_that_comes_too_late_releases_its_memory(daemon: DiskDaemon, kind: str) -> None:
    spec = Spec(kind, 16, layout="page_first")
    with SglangEngine(spec, daemon.socket, timeout=0.5) as engine:
        store_on_disk_only(engine, daemon)
        with daemon.stopped_worker():
            assert engine.restore(1, PAGES) == computed(spec)
            assert_nothing_is_used(engine, daemon)
        assert eventually(lambda: engine.restore(1, PAGES) == whole(spec, PAGES))
