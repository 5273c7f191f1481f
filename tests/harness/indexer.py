"""Dynamo's indexer, which tests subscribe to engines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pagetier.shm._core import TierFlag

PYTHON = Path(".engines/dynamo/bin/python").absolute()
NAMESPACE = ["unshare", "--map-root-user", "--net"]

Reach = dict[str, int]


def require_indexer() -> None:
    """Skips the tests of a module where the indexer cannot run. They take minutes, so that they need ALL=1."""
    if not os.environ.get("ALL"):
        pytest.skip("takes minutes: ALL=1", allow_module_level=True)
    if not PYTHON.exists():
        pytest.skip("ai-dynamo-runtime could not be installed", allow_module_level=True)
    if subprocess.run([*NAMESPACE, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this host refuses network namespaces", allow_module_level=True)


class Indexer:
    """The indexer, with the workers that it is subscribed to."""

    def __init__(self, block_tokens: int, workers: dict[str, str], log: Path) -> None:
        program = [str(PYTHON), str(Path(__file__).with_name("dynamo_indexer.py"))]
        named = ",".join(f"{number}={endpoint}" for number, endpoint in workers.items())
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [*NAMESPACE, *program, str(block_tokens), named],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                text=True,
            )
        self._log, self._block_tokens = log, block_tokens
        self._answer()

    def reach(self, prompts: Sequence[list[int]], worker: str) -> list[Reach]:
        """Returns what the indexer believes that a worker has of each prompt, in tokens."""
        nothing = {"gpu": 0, "cpu": 0, "disk": 0}
        return [found.get(worker, nothing) for found in self._ask(list(prompts))]

    def replace(self, worker: str, endpoint: str, replay_endpoint: str) -> None:
        """Forgets a worker that has died, as Dynamo does, and listens to the one that takes its place."""
        named = {"instance_id": int(worker), "model_name": "m"}
        source = {"endpoint": endpoint, "replay_endpoint": replay_endpoint, "block_size": self._block_tokens}
        assert self._ask({"path": "/unregister", "body": named})["status"] == "ok"
        assert self._ask({"path": "/register", "body": named | source})["status"] == "ok"

    def close(self) -> None:
        """Ends the indexer."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()

    def _ask(self, question: Any) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, self._log.read_text()[-4000:]
        return json.loads(line)


@contextmanager
def indexing(block_tokens: int, workers: dict[str, str], folder: Path) -> Iterator[Indexer]:
    indexer = Indexer(block_tokens, workers, folder / "indexer.log")
    try:
        yield indexer
    finally:
        indexer.close()


def reach_of(located: bytes, gpu: int, page_tokens: int) -> Reach:
    """Returns what a router should believe: what the GPU has, continued by memory, and that by the disk.

    Args:
        located: The TierFlag of each page of a prompt.
        gpu: The tokens that the GPU has.
        page_tokens: The tokens of a page.
    """
    end = gpu // page_tokens
    while end < len(located) and located[end] & TierFlag.MEMORY:
        end += 1
    cpu = end
    while end < len(located) and located[end] & TierFlag.DISK:
        end += 1
    return {"gpu": gpu, "cpu": cpu * page_tokens, "disk": end * page_tokens}


def note(text: str) -> None:
    """Prints a measurement."""
    sys.stdout.write(text + "\n")
