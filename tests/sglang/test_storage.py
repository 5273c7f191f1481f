"""SGLang's HiCache over pagetier's storage backend: write-through, backup, reset, prefetch, load back."""

from __future__ import annotations

import signal
from pathlib import Path

import msgspec
import pytest

from disk_daemon import DiskDaemon
from eventually import PATIENCE_S, eventually
from pagetier.client.engines.sglang.pools.host_pools import RIDES
from running_daemon import RunningDaemon
from sglang_engine import SglangEngine
from sglang_model import Spec, computed, whole, write_config

pytest_plugins = ("sglang_daemon",)
LAYOUTS = ("layer_first", "page_first", "page_first_direct", "page_head")
OF_KINDS = {"mha": LAYOUTS, "mla": LAYOUTS[:3], "swa": LAYOUTS, "mamba": LAYOUTS[1:3]}
SPECS = [
    *(Spec("mha", 16, ranks=2, layout=layout) for layout in LAYOUTS),
    *(Spec("mha", page, ranks=1, layout=layout) for page in (1, 64) for layout in LAYOUTS[1::2]),
    *(Spec(kind, 16, ranks=2, layout=layout) for kind in ("mla", "swa", "mamba") for layout in OF_KINDS[kind]),
    *(Spec(kind, page, ranks=1, layout="page_first") for kind in ("swa", "mamba") for page in (1, 64)),
    Spec("dsa", 64, ranks=2, layout="page_first_direct"),
    Spec("dsv4", 256, ranks=1, layout="layer_first"),
    Spec("dsv4", 256, ranks=2, layout="page_first_direct"),
]
DRAFTS = [
    Spec(kind, 16, ranks=2, layout=layout, draft="packed") for kind in ("mha", "mla") for layout in OF_KINDS[kind]
] + [Spec(kind, page, layout="page_first", draft="packed") for kind, page in (("dsa", 64), ("dsv4", 256))]
_PAGES = {1: 96, 16: 10, 64: 6, 256: 4}


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_a_prompt_has_the_same_bytes_in_this_engine_and_in_the_next(daemon: DiskDaemon, spec: Spec) -> None:
    pages = _PAGES[spec.page]
    with SglangEngine(spec, daemon.socket) as engine:
        for number in (1, 2):
            engine.insert(number, pages)
        engine.reset()
        assert sum(count for _, count in engine.copied()) >= 2 * pages
        assert engine.restore(1, pages) == whole(spec, pages)
        assert not any(result.hit or result.loaded for result in engine.restore(3, pages))
        assert all(count >= pages for count, _ in engine.copied())
        assert not any(engine.leaked()) and "Traceback" not in engine.log, engine.log
    with SglangEngine(spec, daemon.socket) as other:
        assert other.restore(2, pages) == whole(spec, pages)


@pytest.mark.parametrize("spec", DRAFTS, ids=lambda spec: spec.name)
def test_packed_layers_of_a_draft_are_a_part_of_the_pages(daemon: DiskDaemon, spec: Spec) -> None:
    """All bytes of the model's and the draft's pools are compared, in this engine and in a new process, from disk."""
    pages = min(8, _PAGES[spec.page])
    with SglangEngine(spec, daemon.socket) as engine:
        for number in (1, 2):
            engine.insert(number, pages)
        engine.reset_with_host()
        assert engine.restore(1, pages) == whole(spec, pages)
        assert not any(engine.leaked()) and "Traceback" not in engine.log, engine.log
    with SglangEngine(spec, daemon.socket, timeout=PATIENCE_S) as other:
        assert other.restore(2, pages) == whole(spec, pages)
        daemon.save()
        daemon.flush("memory")
        other.reset_with_host()
        assert other.restore(1, pages) == whole(spec, pages)


def test_a_draft_with_other_heads_is_refused(daemon: DiskDaemon, tmp_path: Path) -> None:
    """Its layers would be divided among ranks as the heads of the model are."""
    spec = Spec("mha", 16, heads=2, layout="page_first", draft="packed")
    model, draft = (write_config(tmp_path / str(heads), msgspec.structs.replace(spec, heads=heads)) for heads in (2, 4))
    flags = {"model_path": str(model), "speculative_draft_model_path": str(draft)}
    with SglangEngine(spec, daemon.socket, flags=flags) as engine:
        line = "HiCache with a draft model of other KV heads than the model's: use the linker"
        assert line in engine.log, engine.log


def test_index_keys_of_another_format_are_other_pages(daemon: DiskDaemon) -> None:
    """The linker has them in another order, and so pages which HiCache does not find."""
    spec = Spec("dsa", 64, layout="page_first")
    with SglangEngine(spec, daemon.socket) as engine:
        engine.insert(1, 4)
        engine.reset()
        assert engine.restore(1, 4) == whole(spec, 4)
    with SglangEngine(spec, daemon.socket, change="index_kpool") as engine:
        assert eventually(lambda: "pagetier attached to" in engine.log), engine.log
        assert engine.restore(1, 4) == computed(spec)
    linker = msgspec.structs.replace(spec, layout="")
    with SglangEngine(linker, daemon.socket) as engine:
        assert engine.restore(1, 4) == computed(linker)


@pytest.mark.parametrize(
    "spec",
    [Spec("dsa", 64, layout="page_first"), Spec("dsv4", 256, layout="page_first")],
    ids=lambda spec: spec.name,
)
def test_a_lookup_reports_of_each_pool_how_many_pages_are_there(daemon: DiskDaemon, spec: Spec) -> None:
    """SGLang believes of a pool of which it hears nothing that its pages are not stored."""
    with SglangEngine(spec, daemon.socket) as engine:
        engine.insert(1, 4)
        engine.reset()
        (pools,) = engine.found_of_each_pool(1, 4)
        assert set(pools) >= ({"kv", "indexer"} if spec.kind == "dsa" else {"kv", "swa", *RIDES} - {"indexer"})
        assert set(pools.values()) == {4}
        assert engine.found_of_each_pool(2, 4) == [{}]


@pytest.mark.parametrize("name", ["swa", *(name for name in RIDES if name != "indexer")])
def test_a_forgotten_pool_of_deepseek_v4_is_noticed(daemon: DiskDaemon, name: str) -> None:
    spec = Spec("dsv4", 256, layout="page_first")
    with SglangEngine(spec, daemon.socket, forget=f"host {name}") as engine:
        engine.insert(1, 4)
        engine.reset_with_host()
        assert [(one.loaded, one.equal) for one in engine.restore(1, 4)] == [(4 * spec.page, False)]


@pytest.mark.parametrize("spec", [DRAFTS[1], DRAFTS[5], *DRAFTS[-2:]], ids=lambda spec: spec.name)
def test_a_forgotten_draft_is_noticed(daemon: DiskDaemon, spec: Spec) -> None:
    pages = min(8, _PAGES[spec.page])
    with SglangEngine(spec, daemon.socket, forget="draft") as engine:
        engine.insert(1, pages)
        engine.reset_with_host()
        assert all(one.loaded == pages * spec.page and not one.equal for one in engine.restore(1, pages))


def test_an_engine_with_a_draft_shares_nothing_with_one_without_it(daemon: DiskDaemon) -> None:
    """Whichever has stored first."""
    drafting, plain = DRAFTS[1], msgspec.structs.replace(DRAFTS[1], draft="")
    for first, second in ((plain, drafting), (drafting, plain)):
        with SglangEngine(first, daemon.socket) as engine:
            engine.insert(1, 8)
        with SglangEngine(second, daemon.socket) as engine:
            assert not any(result.hit or result.loaded for result in engine.restore(1, 8))
        daemon.drop_all_pages()


@pytest.mark.parametrize("kind", OF_KINDS)
def test_both_doors_all_layouts_and_all_numbers_of_ranks_share_pages(daemon: DiskDaemon, kind: str) -> None:
    doors = ["the linker", *OF_KINDS[kind]]
    with SglangEngine(Spec(kind, 16, ranks=2), daemon.socket) as engine:
        assert min(engine.insert(0, 8)) >= 1
    for number, layout in enumerate(doors[1:], 1):
        spec = Spec(kind, 16, ranks=2 if kind == "mamba" else 1, layout=layout)
        with SglangEngine(spec, daemon.socket) as engine:
            assert engine.restore(number - 1, 8) == whole(spec, 8), f"stored through {doors[number - 1]}"
            engine.insert(number, 8)
    spec = Spec(kind, 16, ranks=2)
    with SglangEngine(spec, daemon.socket) as engine:
        assert engine.restore(len(doors) - 1, 8) == whole(spec, 8)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_prefix_without_its_recurrent_state_is_not_restored(daemon: DiskDaemon, ranks: int) -> None:
    spec = Spec("mamba", 16, ranks=ranks, layout="page_first")
    with SglangEngine(spec, daemon.socket) as engine:
        engine.insert(1, 4)
        engine.insert(1, 8)
        engine.reset()
        assert engine.restore(1, 6) == whole(spec, 4), "the states are those after 4 and 8 pages"
        engine.reset()
        assert engine.restore(1, 8) == whole(spec, 8)


def test_a_prefix_without_its_window_is_not_restored(daemon: DiskDaemon) -> None:
    spec = Spec("swa", 16, layout="page_first")
    with SglangEngine(spec, daemon.socket) as engine:
        engine.insert(1, 12)
        for length in range(1, 12):
            engine.reset()
            (result,) = engine.restore(1, length)
            assert result.equal == (result.loaded > 0), length
        engine.reset()
        assert engine.restore(1, 12) == whole(spec, 12)


@pytest.mark.parametrize(
    ("kind", "fixture"), [*((kind, "daemon") for kind in ("mha", "swa", "mamba")), ("mamba", "compressing")]
)
def test_pages_come_from_disk(request: pytest.FixtureRequest, kind: str, fixture: str) -> None:
    spec, daemon = Spec(kind, 128, heads=8, ranks=2, layout="page_first"), request.getfixturevalue(fixture)
    with SglangEngine(spec, daemon.socket, timeout=PATIENCE_S) as engine:
        engine.insert(1, 6)
        daemon.save()
        assert daemon.compresses == (fixture == "compressing")
        daemon.flush("memory")
        engine.reset()
        assert engine.restore(1, 6) == whole(spec, 6)


def test_pages_on_a_disk_that_a_setting_excludes_are_computed(daemon: DiskDaemon) -> None:
    spec = Spec("mha", 128, heads=8, layout="page_first")
    with SglangEngine(spec, daemon.socket, timeout=PATIENCE_S, load="disk=never") as engine:
        engine.insert(1, 6)
        daemon.save()
        daemon.flush("memory")
        engine.reset()
        assert engine.restore(1, 6) == computed(spec)


@pytest.mark.parametrize("kind", ["mha", "swa", "mamba"])
def test_clearing_drops_the_pages_of_this_model_only(daemon: DiskDaemon, kind: str) -> None:
    spec = Spec(kind, 16, layout="page_first")
    with SglangEngine(spec, daemon.socket) as engine, SglangEngine(spec, daemon.socket, weights="other") as other:
        for one in (engine, other):
            one.insert(1, 8)
        daemon.save()
        assert engine.clear() == [True]
        for one in (engine, other):
            one.reset()
        assert not any(result.hit or result.loaded for result in engine.restore(1, 8))
        assert other.restore(1, 8) == whole(spec, 8)
        engine.insert(1, 8)
        engine.reset()
        assert engine.restore(1, 8) == whole(spec, 8), "what was cleared can be stored again"
        assert not any(engine.leaked()) and "Traceback" not in engine.log, engine.log


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_clearing_ends_if_the_daemon_does_not_answer(number: signal.Signals) -> None:
    spec = Spec("mha", 16, layout="page_first")
    with RunningDaemon() as daemon, SglangEngine(spec, daemon.socket) as engine:
        engine.insert(1, 4)
        daemon.signal(number)
        assert engine.clear() == [True], "SGLang asks no backend whether it has cleared anything"
        assert "may not be cleared" in engine.log and "Traceback" not in engine.log, engine.log
        if number is signal.SIGKILL:
            daemon.wait()
            daemon.start()
        else:
            daemon.signal(signal.SIGCONT)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("step", ["insert", "restore"])
@pytest.mark.parametrize("kind", ["mha", "swa"])
def test_a_daemon_that_ends_or_hangs_costs_pages_only(kind: str, step: str, number: signal.Signals) -> None:
    spec = Spec(kind, 16, ranks=2, layout="page_first")
    with RunningDaemon("64MiB", "4KiB") as daemon, SglangEngine(spec, daemon.socket, timeout=2.0) as engine:
        threads = engine.threads()
        engine.insert(1, 8)
        engine.reset()
        if step == "insert":
            daemon.signal(number)
        engine.insert(2, 8)
        engine.reset()
        if step == "restore":
            daemon.signal(number)
        (result, other) = engine.restore(2, 8)
        assert result == other and result.equal == (result.loaded > 0)
        assert engine.threads() == threads and not any(engine.leaked()) and "Traceback" not in engine.log, engine.log
        if number is signal.SIGKILL:
            daemon.wait()
            daemon.start()
        else:
            daemon.signal(signal.SIGCONT)
        assert eventually(lambda: engine.reset() and engine.restore(1, 8) == whole(spec, 8))


@pytest.mark.parametrize("kind", ["mha", "swa", "mamba"])
def test_sglangs_own_faults_leave_nothing_behind(kind: str) -> None:
    spec = Spec(kind, 16, ranks=2, layout="page_first")
    faults = {"SGLANG_TEST_HICACHE_BACKEND_RANDOM_FAILURE": "0.1", "SGLANG_TEST_HICACHE_BACKEND_RANDOM_DELAY": "0.02"}
    # A daemon of its own: a page that only one rank has stored stays open for a while.
    with (
        RunningDaemon("64MiB", "4KiB") as daemon,
        SglangEngine(spec, daemon.socket, environment=faults) as engine,
    ):
        threads, restored = engine.threads(), 0
        for number in range(16):
            engine.insert(number, 4)
            engine.reset()
            for result in engine.restore(number, 4):
                assert result.equal == (result.loaded > 0)
                restored += result.loaded
        assert restored >= 64, "too few pages survived to say anything"
        assert engine.threads() == threads and not any(engine.leaked()), engine.log


@pytest.mark.parametrize(
    ("spec", "extra", "line"),
    [
        (Spec(layout="page_first"), {"interface_v1": 0}, 'set "interface_v1": 1'),
        (Spec(layout="page_first"), {"timeout": "soon"}, "Expected `float`"),
        (Spec(layout="page_first"), {"lora": True}, "SGLang knows LoRA adapters by their paths only"),
    ],
)
def test_what_is_not_supported_is_one_line_in_the_log(
    daemon: DiskDaemon, spec: Spec, extra: dict[str, object], line: str
) -> None:
    with SglangEngine(spec, daemon.socket, **extra) as engine:
        engine.insert(1, 8)
        engine.reset()
        assert not any(result.hit for result in engine.restore(1, 8))
        assert engine.log.count("pagetier caches nothing") == 1 and line in engine.log, engine.log
