"""Runs Dynamo's indexer in a network namespace, and asks it questions from standard input.

usage: dynamo_indexer.py BLOCK_TOKENS WORKER=ENDPOINT...

The indexer binds all addresses of the host, so this program runs where only the loopback device exists. A question is a
line of JSON with a list of prompts. The answer is a line with {worker: {"gpu": ..., "cpu": ..., "disk": ...}} of each
prompt: the tokens that the worker has up to that tier. A line with {"path": ..., "body": ...} is passed on as a
request, such as /register and /unregister, by which Dynamo follows workers that come and die. Only the standard library
is used: the indexer's environment has no other packages.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import socket
import struct
import subprocess
import sys
import urllib.request
from typing import Any

from eventually import PATIENCE_S, eventually

_SET_FLAGS, _UP_AND_RUNNING = 0x8914, 0x41
_PORT = 8091
_URL = f"http://127.0.0.1:{_PORT}"
_MODEL = "m"


def enable_loopback() -> None:
    """Enables the loopback device of a new network namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sh14x", b"lo", _UP_AND_RUNNING))


def request(path: str, body: Any = None) -> Any:
    """Sends a request to the indexer and returns its response."""
    data = None if body is None else json.dumps(body).encode()
    asked = urllib.request.Request(_URL + path, data, {"content-type": "application/json"})
    with urllib.request.urlopen(asked, timeout=PATIENCE_S) as response:
        text = response.read().decode()
    return json.loads(text) if body is not None else text


def wait_ready() -> None:
    """Waits until the indexer answers."""

    def answers() -> bool:
        with contextlib.suppress(OSError):
            request("/health")
            return True
        return False

    assert eventually(answers), "the indexer does not answer"


def reach(tokens: list[int], block_tokens: int) -> dict[str, dict[str, int]]:
    """Returns the tokens of a prompt that each worker has, by tier."""
    found = request("/query", {"model_name": _MODEL, "token_ids": tokens, "block_size": block_tokens})
    return {
        name: {tier: worker[tier] for tier in ("gpu", "cpu", "disk")} for name, worker in found["instances"].items()
    }


def answer(content: Any) -> None:
    """Writes a line of JSON."""
    sys.stdout.write(json.dumps(content) + "\n")
    sys.stdout.flush()


def main(block_tokens: int, workers: str) -> None:
    """Answers questions until the input ends."""
    enable_loopback()
    options = f"--block-size {block_tokens} --port {_PORT} --threads 1 --model-name {_MODEL} --workers {workers}"
    indexer = subprocess.Popen([sys.executable, "-m", "dynamo.indexer", *options.split()], stdout=sys.stderr)
    try:
        wait_ready()
        answer("ready")
        for line in sys.stdin:
            asked = json.loads(line)
            if isinstance(asked, dict):
                answer(request(**asked))
            else:
                answer([reach(prompt, block_tokens) for prompt in asked])
    finally:
        indexer.terminate()
        indexer.wait()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
