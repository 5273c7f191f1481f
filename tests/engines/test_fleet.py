"""Two hosts, each with a daemon and an engine, share pages through a store: the answers stay the same."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from eventually import eventually
from fleet_hosts import PROMPTS, Hosts
from one_host import ask, ask_after_reset, chosen, exact

HARNESS = Path(__file__).parents[1] / "harness"
_STORE = "python://slow_folder_store:SlowFolder"


@pytest.fixture(scope="module", params=chosen() if os.environ.get("ALL") else ["llama"])
def hosts(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    folder = tmp_path_factory.mktemp("store")
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(HARNESS))
        compressing = ["--set", f"remote.url=file://{folder}"]  # which is done for no other store without a key
        hosts = Hosts(request.param, stack, ["--set", f"remote.url={_STORE}{folder}"], first=compressing)
        hosts.compute()
        yield hosts


@contextmanager
def hanging(hosts: Hosts, what: str) -> Iterator[None]:
    """Lets calls of the store hang: `delay` all of them, `delay-get` those that read."""
    says = Path(hosts.second.daemon.snapshot().fleet.url.removeprefix(_STORE)) / what
    says.write_text("inf")
    try:
        yield
    finally:
        says.unlink()
    assert eventually(lambda: hosts.asks), "the breaker stays open"


def test_a_prompt_of_one_host_is_answered_on_the_other_bit_by_bit(hosts: Hosts) -> None:
    """The first page of a host, at least, is compressed: it does not know yet how fast the store is."""
    written = hosts.first.daemon.snapshot().fleet
    assert 0 < written.stored_bytes < written.written_bytes
    assert hosts.own["external"] == hosts.remote_tokens == 0
    result = ask(hosts.engine, *PROMPTS)
    assert exact(result) == exact(hosts.own)
    assert result["external"] == hosts.remote_tokens == 2 * hosts.second.hit()
    assert eventually(lambda: hosts.second.daemon.snapshot().lookups.remote_tokens == 2 * hosts.second.hit())
    again = ask_after_reset(hosts.engine, *PROMPTS)
    assert exact(again) == exact(hosts.own) and hosts.remote_tokens == 2 * hosts.second.hit(), "from memory"


def test_a_store_that_hangs_in_reads_delays_no_request_for_ever(hosts: Hosts) -> None:
    with hanging(hosts, "delay-get"):
        result = hosts.ask_when_empty(PROMPTS[0], PROMPTS[1])
        assert result["external"] == 0 and hosts.is_right(result)
    hosts.forget()


def test_a_store_that_hangs_in_questions_is_not_asked_for_long(hosts: Hosts) -> None:
    with hanging(hosts, "delay"):
        for _ in range(3):
            result = hosts.ask_when_empty(*PROMPTS)
            assert result["external"] == 0 and hosts.is_right(result)
        assert eventually(lambda: not hosts.asks), "each of the two prompts counts"
        assert hosts.asks_nothing()


def test_a_daemon_that_hangs_delays_no_request_for_ever(hosts: Hosts) -> None:
    hosts.forget()
    assert hosts.engine.do("reset")["reset"]
    hosts.second.daemon.signal(signal.SIGSTOP)
    try:
        result = ask(hosts.engine, *PROMPTS)
        assert result["external"] == 0 and hosts.is_right(result)
    finally:
        hosts.second.daemon.signal(signal.SIGCONT)
    assert hosts.second.attached(hosts.engine, clients=1), "the fleet's worker is a client, too"


def test_the_fleet_is_used_again_after_all_of_this(hosts: Hosts) -> None:
    before = hosts.remote_tokens
    assert eventually(lambda: hosts.ask_when_empty(*PROMPTS)["external"] == 2 * hosts.second.hit())
    assert hosts.remote_tokens > before
    result = hosts.ask_when_empty(*PROMPTS)
    assert exact(result) == exact(hosts.own)
    assert hosts.second.is_clean()
