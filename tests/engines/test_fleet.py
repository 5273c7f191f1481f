"""Two hosts, each with a daemon and an engine, share pages through a store: the answers stay the same."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from eventually import eventually
from one_host import REPORTS_FAILURES, Scene, ask, ask_after_reset, distance, exact, prompt, scene_of, texts
from vllm_engine import VllmEngine

PROMPTS = [prompt(90), prompt(91)]
ASK_S, READ_S = 1.5, 3.0
"""The limits of the second engine: long enough for a busy machine where the store works."""

ROUNDING = 0.05
LONG_S = 30.0
HARNESS = Path(__file__).parents[1] / "harness"
LIMITS = {"disk_timeout": 0, "remote_timeout": READ_S, "remote_ask_timeout": ASK_S}


class Hosts:
    """The first host has computed the prompts; the second one has an engine with an empty cache.

    Attributes:
        cold: The result of the first engine without any cache.
        own: Its results from vLLM's own prefix cache.
    """

    def __init__(self, name: str, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        fleet = ("--remote-url", f"python://slow_folder_store:SlowFolder{folder}", "--remote-timeout", f"{LONG_S}s")
        first = stack.enter_context(scene_of(name, *fleet))
        self.second: Scene = stack.enter_context(
            scene_of(name, *fleet, "--remote-write", "never", "--remote-ask-timeout", f"{ASK_S}s")
        )
        assert eventually(lambda: is_open(first) and is_open(self.second), LONG_S)
        self.engine: VllmEngine = self.second.engine(extra=LIMITS)  # starts beside the first one
        stack.push(self.engine)
        with first.engine() as engine:
            self.cold = ask(engine, *PROMPTS)
            self.own = ask(engine, *PROMPTS)
            first.settle()
            pages = first.daemon.header().pages
            assert eventually(lambda: first.daemon.snapshot().fleet.written >= pages, LONG_S)
        ask(self.engine, prompt(92))  # the first steps of an engine are slow

    def remote_tokens(self) -> int:
        return int(self.engine.do("metrics")["vllm:pagetier_remote_tokens"])

    def forget(self) -> None:
        """Removes all pages from the second host."""
        self.second.settle()
        assert self.second.daemon.pagetier("flush", "--all", "--yes").exit_code == 0

    def is_right(self, result: dict[str, Any]) -> bool:
        """Returns whether the answers are those of the first engine."""
        assert texts(result) == texts(self.own)
        assert distance(result, self.own) < ROUNDING
        return True

    @contextmanager
    def hanging(self, what: str) -> Iterator[None]:
        """Lets calls of the store hang: `delay` all of them, `delay-get` those that read."""
        (self.folder / what).write_text("60")
        try:
            yield
        finally:
            (self.folder / what).unlink()
        assert eventually(self.asks, LONG_S), "the breaker stays open"

    def asks(self) -> bool:
        return not self.second.daemon.snapshot().fleet.breaker_open

    def timed(self, *prompts: list[int]) -> tuple[dict[str, Any], float]:
        """Returns the result of an empty host, and how long it took."""
        self.forget()
        began = time.monotonic()
        return ask_after_reset(self.engine, *prompts), time.monotonic() - began


def is_open(scene: Scene) -> bool:
    return scene.daemon.snapshot().fleet.standing == "open"


@pytest.fixture(scope="module", params=["llama", *(["qwen3_next"] if REPORTS_FAILURES else [])])
def hosts(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    folder = tmp_path_factory.mktemp("store")
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(HARNESS))
        yield Hosts(request.param, folder, stack)


def test_a_prompt_of_one_host_is_answered_on_the_other_bit_by_bit(hosts: Hosts) -> None:
    assert hosts.own["external"] == hosts.remote_tokens() == 0
    result = ask(hosts.engine, *PROMPTS)
    assert exact(result) == exact(hosts.own)
    assert result["external"] == hosts.remote_tokens() == 2 * hosts.second.hit()
    assert eventually(lambda: hosts.second.daemon.snapshot().lookups.remote_tokens == 2 * hosts.second.hit(), LONG_S)
    again = ask_after_reset(hosts.engine, *PROMPTS)
    assert exact(again) == exact(hosts.own) and hosts.remote_tokens() == 2 * hosts.second.hit(), "from memory"


def test_a_store_that_hangs_in_reads_delays_no_request_beyond_its_timeout(hosts: Hosts) -> None:
    with hosts.hanging("delay-get"):
        result, seconds = hosts.timed(PROMPTS[0], PROMPTS[1])
        assert result["external"] == 0 and hosts.is_right(result)
        assert READ_S * 0.9 < seconds < ASK_S + READ_S + LONG_S / 2
    hosts.forget()


def test_a_store_that_hangs_in_questions_is_not_asked_for_long(hosts: Hosts) -> None:
    with hosts.hanging("delay"):
        for _ in range(3):
            result, seconds = hosts.timed(*PROMPTS)
            assert result["external"] == 0 and hosts.is_right(result) and seconds < ASK_S + LONG_S / 2
        assert eventually(lambda: not hosts.asks(), LONG_S), "each of the two prompts counts"
        result, seconds = hosts.timed(*PROMPTS)
        assert hosts.is_right(result) and seconds < ASK_S, "nothing is asked"


def test_a_daemon_that_hangs_delays_a_request_for_the_time_of_an_answer(hosts: Hosts) -> None:
    hosts.forget()
    assert hosts.engine.do("reset")["reset"]
    hosts.second.daemon.signal(signal.SIGSTOP)
    try:
        began = time.monotonic()
        result = ask(hosts.engine, *PROMPTS)
        assert result["external"] == 0 and hosts.is_right(result)
        assert ASK_S * 0.9 < time.monotonic() - began < ASK_S + LONG_S / 2
    finally:
        hosts.second.daemon.signal(signal.SIGCONT)
    assert hosts.second.attached(1, clients=1), "the fleet's worker is a client, too"


def test_the_fleet_is_used_again_after_all_of_this(hosts: Hosts) -> None:
    before = hosts.remote_tokens()
    assert eventually(lambda: hosts.timed(*PROMPTS)[0]["external"] == 2 * hosts.second.hit(), LONG_S)
    assert hosts.remote_tokens() > before
    result, _ = hosts.timed(*PROMPTS)
    assert exact(result) == exact(hosts.own)
    assert hosts.second.is_clean()
