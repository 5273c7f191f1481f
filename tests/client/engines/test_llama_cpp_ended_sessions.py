"""Tests that a load of llama.cpp whose pages go in between leaves in the sequence exactly what it says, and no more."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

pytest.importorskip("gguf")
pytest.importorskip("xllamacpp")

from eventually import eventually
from llama_driver import Logits, Model, Tokens
from llama_host import LlamaHost, llama_host, prompt_of, uncached
from pagetier.client import Client
from pagetier.client.engines.llama_cpp import loads
from pagetier.client.engines.llama_cpp.context import LlamaContext
from random_gguf import WRITERS
from running_daemon import RunningDaemon

PAGE = 64
PROMPT = prompt_of(5 * PAGE + 9, seed=70)


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    """Yields a model whose pages have one half, and one whose pages have two."""
    with Model(WRITERS[request.param](tmp_path_factory.mktemp("models") / "model.gguf", 1)) as loaded:
        yield loaded


@contextmanager
def stored(model: Model) -> Iterator[tuple[RunningDaemon, Client]]:
    """Yields a daemon that has the pages of the prompt, and a client."""
    with RunningDaemon("64MiB", "64KiB", "--set", "evict.policy=lru") as daemon, daemon.client() as client:
        with llama_host(model, client) as host:
            host.run(PROMPT)
        yield daemon, client


def stop(daemon: RunningDaemon, client: Client) -> None:
    """The client's thread retires the session of a daemon that stops."""
    assert daemon.stop() == 0
    assert eventually(lambda: client.session is None)


def restart_fresh(daemon: RunningDaemon, client: Client) -> None:
    ended = client.session
    daemon.kill()
    daemon.start("--fresh")
    assert eventually(lambda: client.session is not None and client.session is not ended)


def close(daemon: RunningDaemon, client: Client) -> None:
    """Another thread of the host closes the client."""
    thread = threading.Thread(target=client.close)
    thread.start()
    thread.join()


MOMENTS = {
    "after the lookup": (Client, "find_groups", 1),
    "before the first page": (LlamaContext, "remove", 1),
    "after the first half of a page": (Client, "load", 1),
    "between two batches": (LlamaContext, "set", 2),
}
CASES = (
    *((moment, stop) for moment in MOMENTS),
    *((moment, end) for end in (restart_fresh, close) for moment in ("before the first page", "between two batches")),
)


def after_call(patch: pytest.MonkeyPatch, owner: type, name: str, number: int, do: Callable[[], None]) -> list[int]:
    """Calls a function after a call of a method, and returns the list of the calls so far."""
    original = getattr(owner, name)
    calls: list[int] = []

    def counted(*args: Any, **options: Any) -> Any:
        result = original(*args, **options)
        calls.append(len(calls) + 1)
        if len(calls) == number:
            do()
        return result

    patch.setattr(owner, name, counted)
    return calls


def logits_of(host: LlamaHost, tokens: Tokens, start: int) -> Logits:
    """Returns the last logits after decoding the tokens from a position on, in the batches of uncached()."""
    return [host.context.decode(tokens[at : at + PAGE], at) for at in range(start, len(tokens), PAGE)][-1]


@pytest.mark.parametrize(("moment", "end"), CASES, ids=lambda case: getattr(case, "__name__", case))
def test_a_sequence_has_what_the_load_says(
    model: Model, moment: str, end: Callable[[RunningDaemon, Client], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loads, "_BATCH_BYTES", 1)  # each page is a batch
    with stored(model) as (daemon, client), llama_host(model, client) as host:
        with monkeypatch.context() as patch:
            calls = after_call(patch, *MOMENTS[moment], lambda: end(daemon, client))
            loaded = host.cache.load(PROMPT)
            assert len(calls) >= MOMENTS[moment][-1], "the session ended in the load"
        assert loaded == host.cache._state.context.length(0) == 0
        assert np.array_equal(logits_of(host, PROMPT, loaded), uncached(model, PROMPT))


def test_what_the_sequence_had_stays_if_the_pages_go_before_the_first_is_needed(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stored(model) as (daemon, client), llama_host(model, client) as host:
        host.context.decode(PROMPT[:PAGE])
        with monkeypatch.context() as patch:
            after_call(patch, Client, "find_groups", 1, lambda: stop(daemon, client))
            assert host.cache.load(PROMPT, present=PAGE) == PAGE
        assert host.cache._state.context.length(0) == PAGE
        assert np.array_equal(logits_of(host, PROMPT, PAGE), uncached(model, PROMPT))


def test_no_bytes_are_no_state(model: Model) -> None:
    with Client("/nowhere/pagetier.sock") as client, llama_host(model, client) as host:
        host.context.decode(PROMPT[:PAGE])
        context = host.cache._state.context
        assert not context.set(np.empty(0, np.uint8), 0)
        assert context.set(context.get(0), 0)
