"""Runs `vllm serve` as the README does: a conversation, /metrics, clients that disconnect, and two replicas."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise

import pytest

import tiny_model
from one_host import PAGE_TOKENS, Scene, scene_of
from vllm_server import Server, serving

TURNS = 5
WORDS = 200


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    with scene_of("llama") as there:
        yield there


@pytest.fixture(scope="module")
def server(scene: Scene) -> Iterator[Server]:
    with serving(scene) as there:
        yield there


def words(turn: int) -> str:
    numbers = random.Random(turn)
    return " ".join(f"w{numbers.randrange(tiny_model.WORDS)}" for _ in range(WORDS))


def test_a_conversation_hits_more_with_each_turn(scene: Scene, server: Server) -> None:
    messages: list[dict[str, str]] = []
    hits = [0]
    for turn in range(TURNS):
        messages.append({"role": "user", "content": words(turn)})
        response = server.post(
            "/v1/chat/completions",
            {"model": "tiny", "messages": messages, "temperature": 0, "max_tokens": 30, "ignore_eos": True},
        )
        messages.append({"role": "assistant", "content": response["choices"][0]["message"]["content"]})
        scene.settle()
        server.post("/reset_prefix_cache")
        hits.append(server.counter("vllm:external_prefix_cache_hits"))
    gained = [after - before for before, after in pairwise(hits)]
    assert gained[0] == 0 and gained == sorted(set(gained)), gained
    assert gained[-1] >= (TURNS - 1) * WORDS // PAGE_TOKENS["llama"] * PAGE_TOKENS["llama"]
    assert server.counter("vllm:pagetier_memory_tokens") == hits[-1]
    assert server.counter("vllm:pagetier_failed_loads") == 0


def test_clients_that_disconnect_leave_nothing(scene: Scene, server: Server) -> None:
    for turn in range(6):
        body = {"model": "tiny", "prompt": f"{words(turn // 2)} " * 3, "max_tokens": 2000, "stream": True}
        connection = server.send("/v1/completions", body | {"ignore_eos": True})
        if turn % 3:
            connection.getresponse().read(64 * turn)
        connection.close()
        if turn % 2:
            server.post("/reset_prefix_cache")
    assert scene.is_clean(), scene.daemon.slots()
    response = server.post("/v1/completions", {"model": "tiny", "prompt": words(0), "max_tokens": 4, "temperature": 0})
    assert response["usage"]["completion_tokens"] >= 1


def test_the_log_names_the_daemon_and_the_namespace_once(scene: Scene, server: Server) -> None:
    log = server.log.read_text()
    (line,) = [line for line in log.splitlines() if "pagetier attached to" in line]
    assert str(scene.daemon.socket) in line and f"pages of {PAGE_TOKENS['llama']} tokens" in line
    assert "INFO" in line and scene.model.name in line


def test_a_replica_finds_what_another_one_has_stored(scene: Scene) -> None:
    with serving(scene, "--data-parallel-size", "2", "--api-server-count", "1") as replicas:
        body = {"model": "tiny", "prompt": words(99), "max_tokens": 4, "temperature": 0}
        answers = [replicas.post("/v1/completions", body, X_data_parallel_rank="0")]
        scene.settle()
        answers.append(replicas.post("/v1/completions", body, X_data_parallel_rank="1"))
        hits = [replicas.counter("vllm:external_prefix_cache_hits", engine) for engine in ("0", "1")]
        log = replicas.log.read_text()
    assert hits == [0, scene.hit(WORDS)], log[-8000:]
    assert len({answer["choices"][0]["text"] for answer in answers}) == 1
    assert log.count("pagetier attached to") == 2
