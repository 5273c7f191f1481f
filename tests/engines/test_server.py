"""Runs vLLM's OpenAI server with the connector: a conversation, /metrics, and clients that disconnect."""

from __future__ import annotations

import http.client
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import tiny_model
from one_host import PAGE_TOKENS, Scene, scene_of
from vllm_engine import ENVIRONMENT

TURNS = 5
WORDS = 200
_START_S = 300.0


class Server:
    """`python -m vllm.entrypoints.openai.api_server`, and its HTTP client."""

    def __init__(self, scene: Scene, folder: Path) -> None:
        self.log = folder / "log"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        transfer = {
            "kv_connector": "PagetierConnector",
            "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {"socket": str(scene.daemon.socket)},
        }
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(scene.model)]
        command += ["--served-model-name", "tiny", "--host", "127.0.0.1", "--port", str(self.port), "--enforce-eager"]
        command += ["--dtype", "bfloat16", "--max-model-len", "4096", "--kv-transfer-config", json.dumps(transfer)]
        # The mode enables the request that empties its own cache. vLLM leaves its sockets in the folder.
        own = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_RPC_BASE_PATH": str(folder)}
        environment = os.environ | ENVIRONMENT | own
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)

    def wait(self) -> None:
        """Waits until the server is healthy."""
        ends = time.monotonic() + _START_S
        while not self._is_healthy():
            assert self.process.poll() is None and time.monotonic() < ends, self.log_tail()
            time.sleep(0.2)

    def log_tail(self) -> str:
        """Returns the end of its log."""
        return self.log.read_text(errors="replace")[-8000:]

    def post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """Returns the response to a POST request."""
        connection = self.send(path, body)
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        assert answer.status == 200, text
        return json.loads(text) if text else None

    def send(self, path: str, body: dict[str, Any] | None = None) -> http.client.HTTPConnection:
        """Sends a POST request and does not wait for the response."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        connection.request("POST", path, json.dumps(body or {}), {"Content-Type": "application/json"})
        return connection

    def counter(self, name: str) -> int:
        """Returns a counter of its /metrics."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("GET", "/metrics")
        lines = connection.getresponse().read().decode().splitlines()
        connection.close()
        found = [line for line in lines if line.startswith((name + "{", name + "_total{"))]
        assert found, [line for line in lines if "pagetier" in line or "external" in line]
        return int(sum(float(line.rsplit(" ", 1)[1]) for line in found))

    def stop(self) -> None:
        """Stops the server like Ctrl-C, and checks that no process is left."""
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(60)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def _is_healthy(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    with scene_of("llama") as there:
        yield there


@pytest.fixture(scope="module")
def server(scene: Scene) -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="pagetier-server-") as folder:
        there = Server(scene, Path(folder))
        try:
            there.wait()
            yield there
        finally:
            there.stop()


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
            connection.getresponse().read(64)
        time.sleep(0.02 * turn)
        connection.close()
        if turn % 2:
            server.post("/reset_prefix_cache")
    assert scene.is_clean(), scene.daemon.slots()
    response = server.post("/v1/completions", {"model": "tiny", "prompt": words(0), "max_tokens": 4, "temperature": 0})
    assert response["usage"]["completion_tokens"] >= 1
