"""Kills the daemon, stops its disk and damages its pages: tokens stay right, nothing is raised, no request hangs."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from disk_daemon import DiskDaemon
from eventually import eventually
from one_host import Scene, ask, ask_after_reset, distance, exact, prompt, texts
from small_file_systems import small_file_system
from vllm_engine import VllmEngine

PROMPTS = [prompt(70 + at) for at in range(6)]
TIMEOUT_S = 2.0
ROUNDING = 0.05


class Trouble:
    """An engine that was started before its daemon, and its results for the first prompt and for all at once."""

    def __init__(self, stack: ExitStack) -> None:
        self.daemon = DiskDaemon(4096, "512MiB")
        self.scene = Scene("llama", self.daemon)
        self.engine: VllmEngine = stack.enter_context(self.scene.engine(extra={"disk_timeout": TIMEOUT_S}))
        self.cold = ask(self.engine, PROMPTS[0])
        self.own = ask(self.engine, PROMPTS[0])
        ask(self.engine, *PROMPTS[1:])
        self.all = ask(self.engine, *PROMPTS)
        stack.enter_context(self.daemon)
        assert self.scene.attached(self.engine)
        self.store()

    def store(self) -> None:
        """Stores the pages of all prompts in memory."""
        ask_after_reset(self.engine, *PROMPTS)
        self.scene.settle()

    def is_right(self, result: dict[str, Any]) -> bool:
        """Returns whether the answers to all prompts are right."""
        assert texts(result) == texts(self.all)
        assert distance(result, self.all) < ROUNDING
        return True

    def begin(self, *prompts: list[int]) -> None:
        """Sends prompts to an engine with an empty prefix cache, and does not wait."""
        assert self.engine.do("reset")["reset"]
        self.engine.begin("generate", prompts=list(prompts))

    def start(self, *flags: str) -> None:
        """Starts the daemon again."""
        self.daemon.open(*flags)
        assert self.scene.attached(self.engine)


@pytest.fixture(scope="module")
def trouble() -> Iterator[Trouble]:
    with ExitStack() as stack:
        yield Trouble(stack)


def test_an_engine_finds_a_daemon_that_starts_later(trouble: Trouble) -> None:
    assert trouble.own["external"] == trouble.all["external"] == 0
    assert texts(trouble.cold) == texts(trouble.own) == texts(trouble.all)[:1]
    result = ask_after_reset(trouble.engine, PROMPTS[0])
    assert result["external"] == trouble.scene.hit()
    assert exact(result) == exact(trouble.own)


def test_an_engine_computes_without_its_daemon(trouble: Trouble) -> None:
    assert trouble.daemon.stop() == 0
    result = ask_after_reset(trouble.engine, PROMPTS[0])
    assert result["external"] == 0
    assert exact(result) == exact(trouble.cold)
    trouble.start()
    trouble.store()


@pytest.mark.parametrize("moment", ["sent", "pinned"])
def test_the_daemon_is_killed_during_loads(trouble: Trouble, moment: str) -> None:
    trouble.begin(*PROMPTS)
    if moment == "pinned":
        assert eventually(lambda: trouble.engine.answered or any(slot.pins for slot in trouble.daemon.slots()))
    trouble.daemon.kill()
    assert trouble.is_right(trouble.engine.end())
    trouble.start()
    assert ask_after_reset(trouble.engine, PROMPTS[0])["external"] == trouble.scene.hit()


def test_the_daemon_is_stopped_during_loads_and_stores(trouble: Trouble) -> None:
    trouble.begin(*PROMPTS)
    trouble.daemon.signal(signal.SIGSTOP)
    try:
        assert trouble.is_right(trouble.engine.end())
        assert ask_after_reset(trouble.engine, PROMPTS[0])["external"] == trouble.scene.hit()
        ask(trouble.engine, prompt(80), prompt(81))
        assert trouble.is_right(ask_after_reset(trouble.engine, *PROMPTS))
    finally:
        trouble.daemon.signal(signal.SIGCONT)
    assert trouble.scene.attached(trouble.engine)


@contextmanager
def disk_that_hangs(daemon: DiskDaemon) -> Iterator[None]:
    worker = daemon.kill_worker(signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):  # a daemon that was killed has taken it along
            os.kill(worker, signal.SIGCONT)


def test_the_daemon_is_killed_while_a_request_waits_for_the_disk(trouble: Trouble) -> None:
    trouble.store()
    trouble.scene.evict_to_disk()
    with disk_that_hangs(trouble.daemon):
        trouble.begin(*PROMPTS)
        assert eventually(lambda: trouble.daemon.header().open_entries), "pages are being read"
        trouble.daemon.kill()
        assert trouble.is_right(trouble.engine.end())
    trouble.start()


def test_a_request_does_not_wait_for_a_disk_that_hangs(trouble: Trouble) -> None:
    trouble.store()
    trouble.scene.evict_to_disk()
    with disk_that_hangs(trouble.daemon):
        trouble.begin(*PROMPTS)
        result = trouble.engine.end()
        assert trouble.is_right(result)
        assert result["external"] == 0
    assert eventually(lambda: ask_after_reset(trouble.engine, PROMPTS[0])["external"] == trouble.scene.hit())


def test_with_a_deadline_of_zero_no_request_waits(trouble: Trouble) -> None:
    trouble.store()
    with trouble.scene.engine(extra={"disk_timeout": 0}) as engine:
        assert any(computes(trouble, engine) for _ in range(3))
        trouble.scene.settle()
        assert eventually(lambda: ask_after_reset(engine, PROMPTS[0])["external"] == trouble.scene.hit())
        assert exact(ask_after_reset(engine, PROMPTS[0])) == exact(trouble.own)


def computes(trouble: Trouble, engine: VllmEngine) -> bool:
    """Returns whether a prompt on disk is computed.

    Its pages are read from its arrival on, and a request that waits for a core before its turn finds some in memory.
    """
    trouble.scene.evict_to_disk()
    result = ask_after_reset(engine, PROMPTS[0])
    assert result["external"] or exact(result) == exact(trouble.cold)
    return bool(result["external"] == 0)


def damage(data: Path, at_most: int) -> int:
    """Flips bits in the contents of pages, which begin at multiples of a frame's size. Returns their number."""
    content, flipped = bytearray(data.read_bytes()), 0
    for at in range(0, len(content) - 20_000, 1 << 16):
        if flipped < at_most and any(content[at : at + 64]):
            content[at + 20_000] ^= 4
            flipped += 1
    data.write_bytes(content)
    return flipped


@pytest.mark.parametrize("at_most", [1, 1000])
def test_damaged_pages_are_computed(trouble: Trouble, at_most: int) -> None:
    trouble.daemon.stop()
    trouble.daemon.disk = trouble.daemon.disk.with_name(
        f"damaged-{at_most}"
    )  # without space that other tests have freed
    trouble.start()
    ask_after_reset(trouble.engine, PROMPTS[0])
    trouble.scene.settle()
    trouble.daemon.stop()
    assert sum(damage(data, at_most) for data in trouble.daemon.disk.glob("*/frames.*"))
    trouble.start()
    result = ask_after_reset(trouble.engine, PROMPTS[0])
    assert result["external"] < trouble.scene.hit()
    assert texts(result) == texts(trouble.own)
    assert distance(result, trouble.own) < ROUNDING
    assert eventually(lambda: trouble.daemon.header().disk_damaged), trouble.daemon.reported()
    trouble.scene.settle()
    again = ask_after_reset(trouble.engine, PROMPTS[0])
    assert again["external"] == trouble.scene.hit()
    assert exact(again) == exact(trouble.own)


def test_answers_are_right_while_the_disk_is_full(trouble: Trouble) -> None:
    usual = trouble.daemon.disk
    with small_file_system("3m") as folder:
        trouble.daemon.stop()
        trouble.daemon.disk = folder / "disk"
        try:
            trouble.start("--fresh", "--set", "disk.write=through")
            trouble.store()
            assert trouble.daemon.pagetier("flush", "--to-disk").exit_code == 1
            assert trouble.is_right(ask_after_reset(trouble.engine, *PROMPTS))
            trouble.daemon.pagetier("flush", "--all", "--tier", "memory", "--yes")
            assert trouble.is_right(ask_after_reset(trouble.engine, *PROMPTS))
            assert "is full" in trouble.daemon.log.read_text(), trouble.daemon.reported()
        finally:
            trouble.daemon.stop()
            trouble.daemon.disk = usual
    trouble.start("--fresh")


def test_the_engine_recovers_from_all_of_this(trouble: Trouble) -> None:
    trouble.store()
    result = ask_after_reset(trouble.engine, PROMPTS[0])
    assert result["external"] == trouble.scene.hit()
    assert exact(result) == exact(trouble.own)
    assert trouble.scene.is_clean()
