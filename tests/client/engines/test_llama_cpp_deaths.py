"""Tests that prompts of llama.cpp survive the deaths of hosts and daemons, on disk, and reach other hosts."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("gguf")
pytest.importorskip("xllamacpp")

from disk_daemon import write_through
from disk_stores import StoreKind, settings_of
from eventually import PATIENCE_S
from fleet_host import PATIENT, FleetHost
from llama_driver import Model
from llama_host import Answer, answer_in_process, ask, digest_of, llama_host, llama_process, prompt_of, uncached
from pagetier.shm._core import compresses_fast
from running_daemon import RunningDaemon

pytest_plugins = ("llama_model",)

PAGE = 64
PROMPT = prompt_of(5 * PAGE + 3, seed=50)


def stored_by_a_process(model: Path, socket: Path, **params: Any) -> Answer:
    return answer_in_process(model, socket, PROMPT, **params)


def test_a_host_that_is_killed_while_it_stores_leaves_no_wrong_page(model: Model) -> None:
    """It dies after a random number of its prompts' first bytes were answered; a reader has the right logits."""
    random = np.random.default_rng(51)
    with RunningDaemon("64MiB", "64KiB", "--set", "evict.policy=lru") as daemon:
        for death in range(4):
            with llama_process(model.path, daemon.socket) as process:
                ask(process, prompt_of(9, seed=1))  # the model is loaded
                assert process.stdin is not None
                for seed in range(60 + death, 64 + death):
                    process.stdin.write(json.dumps(prompt_of(6 * PAGE + 1, seed=seed).tolist()) + "\n")
                process.stdin.flush()
                for _ in range(int(random.integers(0, 3))):
                    assert process.stdout is not None and process.stdout.readline()
                process.kill()
                process.wait()
            with daemon.client() as client, llama_host(model, client) as host:
                for seed in range(60, 64 + death):
                    prompt = prompt_of(6 * PAGE + 1, seed=seed)
                    assert np.array_equal(host.run(prompt)[1], uncached(model, prompt))


def test_pages_survive_a_killed_daemon(model: Model) -> None:
    expected = digest_of(uncached(model, PROMPT))
    with RunningDaemon("64MiB", "64KiB", "--set", "evict.policy=lru") as daemon:
        assert stored_by_a_process(model.path, daemon.socket) == Answer(0, expected)
        daemon.kill()
        daemon.start()
        assert stored_by_a_process(model.path, daemon.socket) == Answer(5 * PAGE, expected)


def test_a_host_continues_when_the_daemon_is_killed(model: Model) -> None:
    with ExitStack() as stack:
        daemon = stack.enter_context(RunningDaemon("64MiB", "64KiB", "--set", "evict.policy=lru"))
        client = stack.enter_context(daemon.client())
        host = stack.enter_context(llama_host(model, client))
        host.run(PROMPT)
        daemon.kill()
        for prompt in (PROMPT, prompt_of(3 * PAGE, seed=52)):
            assert np.array_equal(host.run(prompt)[1], uncached(model, prompt))
        daemon.start()
        assert client.wait_attached(PATIENCE_S)
        loaded, logits = host.run(PROMPT)
        assert loaded == 5 * PAGE
        assert np.array_equal(logits, uncached(model, PROMPT))


@pytest.mark.parametrize(("kind", "page"), [("files", PAGE), ("compressed", 2 * PAGE)])
def test_pages_are_loaded_from_disk_after_a_restart(model: Model, kind: StoreKind, page: int) -> None:
    expected = digest_of(uncached(model, PROMPT, n_ubatch=page))
    hit = len(PROMPT) // page * page
    with write_through(*settings_of(kind), "--set", "arena.frame_size=4KiB") as daemon:
        assert stored_by_a_process(model.path, daemon.socket, n_ubatch=page) == Answer(0, expected)
        daemon.until_written()
        assert daemon.compresses == (kind == "compressed" and compresses_fast())
        daemon.stop()
        daemon.open()
        assert stored_by_a_process(model.path, daemon.socket, n_ubatch=page) == Answer(hit, expected)
        assert daemon.snapshot().lookups.disk_tokens == hit, "the lookup counts once"


def test_another_host_of_the_fleet_loads_them(model: Model, tmp_path: Path) -> None:
    expected = digest_of(uncached(model, PROMPT))
    with ExitStack() as stack:
        first, second = (FleetHost(f"file://{tmp_path}", stack, *PATIENT) for _ in range(2))
        assert stored_by_a_process(model.path, first.daemon.socket) == Answer(0, expected)
        first.wait_shared(5)
        assert stored_by_a_process(model.path, second.daemon.socket) == Answer(5 * PAGE, expected)
