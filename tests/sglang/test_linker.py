"""SGLang's radix cache with pagetier's linker: insert, offload, reset, match, load layer by layer, evict."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from disk_daemon import DiskDaemon
from eventually import eventually
from sglang_engine import SglangEngine
from sglang_model import WINDOW, Restored, Spec, computed, whole

pytest_plugins = ("sglang_daemon",)
SPECS = [
    Spec(kind, page, ranks=ranks) for kind in ("mha", "mla", "swa", "mamba") for page in (1, 16, 64) for ranks in (1, 2)
]
_PAGES = {1: 96, 16: 10, 64: 6}


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_a_prompt_has_the_same_bytes_in_this_engine_and_in_the_next(daemon: DiskDaemon, spec: Spec) -> None:
    pages = _PAGES[spec.page]
    with SglangEngine(spec, daemon.socket) as engine:
        for number in (1, 2):
            assert min(engine.insert(number, pages)) >= 1, "no node was stored"
        engine.reset()
        assert engine.restore(1, pages) == whole(spec, pages)
        assert engine.restore(3, pages) == computed(spec)
    with SglangEngine(spec, daemon.socket) as other:
        assert other.restore(2, pages) == whole(spec, pages)
        assert other.restore(1, pages) == whole(spec, pages)
        assert "Traceback" not in other.log


@pytest.mark.parametrize("kind", ["mha", "mla", "swa"])
@pytest.mark.parametrize("ranks", [(1, 2), (2, 1), (2, 4), (4, 1)], ids=str)
def test_every_number_of_ranks_reads_the_pages_of_every_other(
    daemon: DiskDaemon, kind: str, ranks: tuple[int, int]
) -> None:
    stores, loads = (Spec(kind, 16, heads=2, ranks=count) for count in ranks)  # with 4 ranks two of them share a head
    with SglangEngine(stores, daemon.socket) as engine:
        assert min(engine.insert(1, 8)) >= 1
    with SglangEngine(loads, daemon.socket) as engine:
        assert engine.restore(1, 8) == whole(loads, 8)


def test_the_first_rank_logs_the_attachment_for_all_before_any_request(daemon: DiskDaemon) -> None:
    with SglangEngine(Spec("swa", 16, ranks=2), daemon.socket, weights="these") as engine:
        assert eventually(lambda: "pagetier attached to" in engine.log), engine.log
        (line,) = [line for line in engine.log.splitlines() if "pagetier attached to" in line]
    assert f"{daemon.socket} in slot " in line and "pages of 16 tokens (kv " in line and ", weights " in line, line


def test_engines_that_differ_share_nothing(daemon: DiskDaemon) -> None:
    spec = Spec("mha", 16)
    with SglangEngine(spec, daemon.socket) as engine:
        engine.insert(1, 8)
        assert engine.restore(1, 8) == computed(spec), "on the GPU already"
    for other, extra in ((Spec("mha", 8), {}), (spec, {"weights": "others"}), (spec, {"salt": "a tenant"})):
        with SglangEngine(other, daemon.socket, **extra) as engine:
            assert engine.restore(1, 8 * 16 // other.page) == computed(other)


@pytest.mark.parametrize("kind", ["mha", "swa"])
def test_a_prompt_that_goes_on_is_loaded_up_to_its_last_stored_page(daemon: DiskDaemon, kind: str) -> None:
    spec = Spec(kind, 16, ranks=2)
    with SglangEngine(spec, daemon.socket) as engine:
        engine.insert(1, 8)
        engine.reset()
        assert engine.restore(1, 12) == whole(spec, 8)


def test_what_the_gpu_has_is_not_loaded(daemon: DiskDaemon) -> None:
    spec = Spec("mha", 16)
    with SglangEngine(spec, daemon.socket) as engine:
        engine.insert(1, 12)
        engine.reset()
        engine.insert(1, 4)
        assert engine.restore(1, 12) == [Restored(128, 128, equal=True, failed=False)]


def test_a_batch_loads_all_of_its_requests(daemon: DiskDaemon) -> None:
    spec = Spec("swa", 16, ranks=2)
    with SglangEngine(spec, daemon.socket) as engine:
        for number in range(4):
            engine.insert(number, 6)
        engine.reset()
        results = engine.restore_together([0, 1, 2, 3], 6)
        assert results == [[whole(spec, 6)[0]] * 4] * 2


def test_evicted_pages_are_loaded_again(daemon: DiskDaemon) -> None:
    spec = Spec("mha", 16)
    with SglangEngine(spec, daemon.socket) as engine:
        engine.insert(1, 32)
        assert engine.evict(1024) == [0], "a stored node is still locked"
        assert engine.restore(1, 32) == whole(spec, 32)


def test_a_window_is_restored_where_only_its_pages_are_there(daemon: DiskDaemon) -> None:
    spec = Spec("swa", 16)
    pages = 2 * WINDOW // 16 + 2
    with SglangEngine(spec, daemon.socket) as engine:
        engine.insert(1, pages)
        engine.reset()
        # A window of SGLang may end at none of these lengths. What is loaded has the right bytes.
        for length in range(1, pages + 1):
            (result,) = engine.restore(1, length)
            assert result.equal == (result.loaded > 0)
            assert not result.failed
        assert engine.restore(1, pages) == whole(spec, pages)


@pytest.mark.parametrize(
    ("kind", "fixture"), [*((kind, "daemon") for kind in ("mha", "swa", "mamba")), ("mha", "compressing")]
)
def test_pages_on_disk_are_read_for_the_next_lookup(request: pytest.FixtureRequest, kind: str, fixture: str) -> None:
    spec, daemon = Spec(kind, 128, heads=8, ranks=2), request.getfixturevalue(fixture)
    with SglangEngine(spec, daemon.socket) as engine:
        engine.insert(1, 4)
        daemon.save()
        assert daemon.compresses == (fixture == "compressing")
        daemon.flush("memory")
        engine.reset()
        assert engine.restore(1, 4) == computed(spec)
        assert eventually(lambda: engine.restore(1, 4) == whole(spec, 4))


@pytest.mark.parametrize("ranks", [1, 2])
def test_pages_that_are_computed_faster_are_not_read_and_counted(daemon: DiskDaemon, ranks: int) -> None:
    spec, tokens = Spec("mha", 128, heads=8, ranks=ranks), 4 * 128
    with SglangEngine(spec, daemon.socket, lease=1.0) as engine:
        engine.insert(1, 4)
        daemon.save()
        for _ in range(2):  # nothing is known of the engine at first, and then nothing of a slow disk
            _drop_from_memory(daemon, engine)
            engine.reset()
            assert engine.restore(1, 4) == computed(spec)
            assert eventually(lambda: engine.restore(1, 4) == whole(spec, 4))
        assert not _slower_tokens(daemon)
        engine.computes_at_once()
        _drop_from_memory(daemon, engine)
        engine.reset()
        assert engine.restore(1, 4) == computed(spec)
        assert eventually(lambda: engine.poll() and _slower_tokens(daemon) == tokens)


def _drop_from_memory(daemon: DiskDaemon, engine: SglangEngine) -> None:
    """Flushes until no page is left in memory: a rank pins what it alone has found until its lease ends."""

    def is_empty() -> bool:
        engine.poll()
        daemon.flush("memory")
        return not daemon.header().used_frames

    assert eventually(is_empty), daemon.header()


def test_nothing_is_read_from_a_disk_that_a_setting_excludes(daemon: DiskDaemon) -> None:
    spec, read_before = Spec("mha", 128, heads=8), daemon.header().disk_read
    with SglangEngine(spec, daemon.socket, load="disk=never") as engine:
        engine.insert(1, 4)
        daemon.save()
        daemon.flush("memory")
        for _ in range(3):
            engine.reset()
            assert engine.restore(1, 4) == computed(spec)
            engine.poll()
        assert not _slower_tokens(daemon) and daemon.header().disk_read == read_before


def _slower_tokens(daemon: DiskDaemon) -> int:
    return sum(slot.counts.disk_slower_tokens for slot in daemon.slots())


@pytest.mark.parametrize(("kind", "ranks"), [("mha", 1), ("swa", 2), ("mamba", 2)])
def test_pins_end_with_their_lease(daemon: DiskDaemon, kind: str, ranks: int) -> None:
    spec = Spec(kind, 16, ranks=ranks)
    with SglangEngine(spec, daemon.socket, lease=2.0) as engine:
        engine.insert(1, 8)
        engine.reset()
        assert engine.match_only("waiting", 1, 8) == [128] * ranks
        assert sum(record.pins for record in daemon.slots()) >= 8 * ranks
        assert eventually(lambda: not any(engine.poll()) and not sum(record.pins for record in daemon.slots()))
        assert engine.load_matched("waiting") == whole(spec, 8), "the pages are still there"


@pytest.mark.parametrize("stored_again", [False, True])
@pytest.mark.parametrize("ranks", [1, 2])
def test_pages_that_are_gone_after_their_lease_are_computed(daemon: DiskDaemon, ranks: int, stored_again: bool) -> None:
    spec = Spec("mha", 16, ranks=ranks)
    with SglangEngine(spec, daemon.socket, lease=1.0) as engine:
        engine.insert(1, 8)
        engine.reset()
        engine.match_only("waiting", 1, 8)
        assert eventually(lambda: not any(engine.poll()) and not sum(record.pins for record in daemon.slots()))
        daemon.drop_all_pages()
        if stored_again:
            with SglangEngine(spec, daemon.socket) as other:
                assert other.insert(1, 8) == [1] * ranks
        assert engine.load_matched("waiting") == [Restored(128, 0, equal=False, failed=False)] * ranks


def test_an_engine_whose_weights_may_have_changed_shares_nothing(daemon: DiskDaemon) -> None:
    spec = Spec("mha", 16, ranks=2)
    with SglangEngine(spec, daemon.socket, flush="renew") as engine:
        engine.insert(1, 8)
        engine.reset()  # as SGLang does after new weights
        assert engine.restore(1, 8) == computed(spec)
        assert engine.insert(2, 8) == [1, 1]
        assert engine.evict(1024) == [0, 0]
        assert engine.restore(2, 8) == whole(spec, 8)
    with SglangEngine(spec, daemon.socket) as other:
        assert other.restore(1, 8) == whole(spec, 8), "stored with the weights that all engines have"
        assert other.restore(2, 8) == computed(spec)


def test_an_engine_with_adapters_shares_nothing(daemon: DiskDaemon) -> None:
    spec = Spec("mha", 16, ranks=2)
    with SglangEngine(spec, daemon.socket, lora=True) as engine:
        assert engine.insert(1, 8) == [1, 1]
        assert engine.evict(1024) == [0, 0]
        assert engine.restore(1, 8) == whole(spec, 8)
        assert "pagetier shares no pages with other engines" in engine.log
    for adapters in (True, False):
        with SglangEngine(spec, daemon.socket, lora=adapters) as other:
            assert other.restore(1, 8) == computed(spec)


def loads_what_one_rank_lost(engine: SglangEngine) -> bool:
    """Returns whether a rank loads pages that another one cannot load any more."""
    engine.match_only("waiting", 1, 8)
    engine.leave(1)
    return bool(engine.queue_matched("waiting") != [0, 0])


def loads_less_than_all_ranks_have(engine: SglangEngine) -> bool:
    """Returns whether the ranks do not load the longest prefix that all of them have."""
    engine.find_at_most(1, 6)
    return bool(engine.restore(1, 8) != whole(engine.spec, 6))


@contextmanager
def ranks_with_a_prompt(daemon: DiskDaemon) -> Iterator[SglangEngine]:
    """Runs an engine with two ranks, whose first prompt only pagetier has."""
    with SglangEngine(Spec("mha", 16, ranks=2), daemon.socket) as engine:
        engine.insert(1, 8)
        engine.reset()
        yield engine


def test_what_one_rank_lost_no_rank_loads(daemon: DiskDaemon) -> None:
    with ranks_with_a_prompt(daemon) as engine:
        assert not loads_what_one_rank_lost(engine)
        assert engine.finish_queued("waiting") == [Restored(128, 0, equal=False, failed=False)] * 2


def test_ranks_load_the_longest_prefix_that_all_of_them_have(daemon: DiskDaemon) -> None:
    with ranks_with_a_prompt(daemon) as engine:
        assert not loads_less_than_all_ranks_have(engine)


@pytest.mark.parametrize(
    ("mutant", "goes_wrong"),
    [
        ("each rank answers for itself", loads_what_one_rank_lost),
        ("each rank returns its longest prefix only", loads_less_than_all_ranks_have),
    ],
)
def test_ranks_that_do_not_agree_would_be_found(
    daemon: DiskDaemon, mutant: str, goes_wrong: Callable[[SglangEngine], bool]
) -> None:
    with ranks_with_a_prompt(daemon) as engine:
        engine.mutate(mutant)
        assert goes_wrong(engine)


def test_a_request_that_is_cancelled_releases_its_pages(daemon: DiskDaemon) -> None:
    spec = Spec("mha", 16)
    with SglangEngine(spec, daemon.socket, lease=600.0) as engine:
        engine.insert(1, 8)
        engine.reset()
        engine.match_only("first", 1, 8)
        assert engine.queue_matched("first") == [128]
        engine.release("first")
        engine.match_only("second", 1, 8)
        engine.reset()
        assert not sum(record.pins for record in daemon.slots())
