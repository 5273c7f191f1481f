"""SGLang's HiCache over pagetier's storage backend: write-through, backup, reset, prefetch, load back."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from disk_daemon import DiskDaemon
from eventually import eventually
from running_daemon import RunningDaemon
from sglang_engine import SglangEngine
from sglang_model import Restored, Spec

LAYOUTS = ("layer_first", "page_first", "page_first_direct", "page_head")
SPECS = [
    *(Spec("mha", 16, ranks=2, layout=layout) for layout in LAYOUTS),
    *(Spec("mha", page, ranks=1, layout=layout) for page in (1, 64) for layout in LAYOUTS[1::2]),
    *(Spec("mla", 16, ranks=2, layout=layout) for layout in LAYOUTS[:3]),
]
_PAGES = {1: 96, 16: 10, 64: 6}
_WAIT_S = 60.0


@pytest.fixture(scope="module", name="shared_daemon")
def _shared_daemon() -> Iterator[DiskDaemon]:
    """Runs a daemon with a disk, which writes pages when they are evicted or saved."""
    with DiskDaemon(1024, "256MiB") as running:
        running.wait_open()
        yield running


@pytest.fixture
def daemon(shared_daemon: DiskDaemon) -> Iterator[DiskDaemon]:
    """Drops all pages after the test."""
    yield shared_daemon
    shared_daemon.drop_all_pages()


def whole(spec: Spec, pages: int) -> list[Restored]:
    """Returns the result of each rank if all pages of a prompt were read from the store."""
    tokens = pages * spec.page
    return [Restored(tokens, tokens, equal=True, failed=False)] * spec.ranks


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_a_prompt_has_the_same_bytes_in_this_engine_and_in_the_next(daemon: DiskDaemon, spec: Spec) -> None:
    pages = _PAGES[spec.page]
    with SglangEngine(spec, daemon.socket) as engine:
        for number in (1, 2):
            engine.insert(number, pages)
        engine.reset()
        assert engine.restore(1, pages) == whole(spec, pages)
        assert not any(result.hit or result.loaded for result in engine.restore(3, pages))
        assert not any(engine.leaked()) and "Traceback" not in engine.log, engine.log
    with SglangEngine(spec, daemon.socket) as other:
        assert other.restore(2, pages) == whole(spec, pages)


@pytest.mark.parametrize("kind", ["mha", "mla"])
def test_both_doors_all_layouts_and_all_numbers_of_ranks_share_pages(daemon: DiskDaemon, kind: str) -> None:
    doors = ["the linker", *LAYOUTS[: 4 if kind == "mha" else 3]]
    with SglangEngine(Spec(kind, 16, ranks=2), daemon.socket) as engine:
        assert min(engine.insert(0, 8)) == 1
    for number, layout in enumerate(doors[1:], 1):
        spec = Spec(kind, 16, ranks=1, layout=layout)
        with SglangEngine(spec, daemon.socket) as engine:
            assert engine.restore(number - 1, 8) == whole(spec, 8), f"stored through {doors[number - 1]}"
            engine.insert(number, 8)
    spec = Spec(kind, 16, ranks=2)
    with SglangEngine(spec, daemon.socket) as engine:
        assert engine.restore(len(doors) - 1, 8) == whole(spec, 8)


def test_pages_come_from_disk(daemon: DiskDaemon) -> None:
    spec = Spec("mha", 64, ranks=2, layout="page_first")
    with SglangEngine(spec, daemon.socket, timeout=30.0) as engine:
        engine.insert(1, 6)
        daemon.save()
        daemon.flush("memory")
        engine.reset()
        assert engine.restore(1, 6) == whole(spec, 6)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("step", ["insert", "restore"])
def test_a_daemon_that_ends_or_hangs_costs_pages_only(step: str, number: signal.Signals) -> None:
    spec = Spec("mha", 16, ranks=2, layout="page_first")
    with RunningDaemon("64MiB", "4KiB") as daemon, SglangEngine(spec, daemon.socket) as engine:
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
        assert eventually(lambda: engine.reset() and engine.restore(1, 8) == whole(spec, 8), _WAIT_S)


def test_sglangs_own_faults_leave_nothing_behind() -> None:
    spec = Spec("mha", 16, ranks=2, layout="page_first")
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
