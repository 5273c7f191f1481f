"""Dynamo's indexer beside a real engine, and what it should believe: the location of each page in the index."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from vllm.utils.hashing import sha256
from vllm.v1.core import kv_cache_utils

from one_host import Scene
from pagetier.client import Client
from pagetier.client.hash_inputs import mixed_into
from pagetier.shm._core import TierFlag

PYTHON = Path(".engines/dynamo/bin/python").absolute()
NAMESPACE = ["unshare", "--map-root-user", "--net"]
_BELIEVED_S = 30.0

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
        self._log = log
        self._answer()

    def reach(self, prompts: Sequence[list[int]], worker: str) -> list[Reach]:
        """Returns what the indexer believes that a worker has of each prompt, in tokens."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(list(prompts)) + "\n")
        self._process.stdin.flush()
        nothing = {"gpu": 0, "cpu": 0, "disk": 0}
        return [found.get(worker, nothing) for found in self._answer()]

    def close(self) -> None:
        """Ends the indexer."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()

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


class Truth:
    """Where the pages of prompts are, read from the index.

    Of several groups it reads the one with full attention, which has the most pages.

    Args:
        scene: The host.
        page_tokens: Tokens of a page.
    """

    def __init__(self, scene: Scene, page_tokens: int) -> None:
        os.environ["PYTHONHASHSEED"] = "0"  # as for the engines
        kv_cache_utils.init_none_hash(sha256)
        self._scene, self._page_tokens = scene, page_tokens

    def reach(self, client: Client, prompt: list[int], gpu: int) -> Reach:
        """Returns what a router should believe: what the GPU has, continued by memory, and that by the disk."""
        located, size = self.located(client, prompt), self._page_tokens
        end = gpu // size
        while end < len(located) and located[end] & TierFlag.MEMORY:
            end += 1
        cpu = end
        while end < len(located) and located[end] & TierFlag.DISK:
            end += 1
        return {"gpu": gpu, "cpu": cpu * size, "disk": end * size}

    def found(self, client: Client, prompt: list[int]) -> int:
        """Returns the tokens that a match finds, in whatever tier."""
        located = self.located(client, prompt)
        return next((at for at, tiers in enumerate(located) if not tiers), len(located)) * self._page_tokens

    def located(self, client: Client, prompt: list[int]) -> bytes:
        """Returns the tiers of each full page."""
        all_spaces = self._scene.daemon.observer().spaces()
        spaces = [space for space in all_spaces if space.page_tokens == self._page_tokens]
        if not spaces:
            return bytes(len(prompt) // self._page_tokens)
        assert client.session is not None
        largest = max(spaces, key=lambda space: space.listed)
        return client.session.locate(mixed_into(self._hashes(prompt), largest.digest))

    def _hashes(self, prompt: list[int]) -> list[bytes]:
        hashes: list[bytes] = []
        for page in range(len(prompt) // self._page_tokens):
            tokens = prompt[page * self._page_tokens : (page + 1) * self._page_tokens]
            hashes.append(kv_cache_utils.hash_block_tokens(sha256, hashes[-1] if hashes else None, tokens))
        return hashes


def agree(
    indexer: Indexer, truth: Truth, client: Client, prompts: Sequence[list[int]], worker: str = "1"
) -> list[Reach]:
    """Waits until the indexer believes of each prompt what is true, and returns what it believes."""
    ends = time.monotonic() + _BELIEVED_S
    while True:
        believed = indexer.reach(prompts, worker)
        expected = [truth.reach(client, one, seen["gpu"]) for one, seen in zip(prompts, believed, strict=True)]
        if believed == expected:
            return believed
        if time.monotonic() > ends:
            wrong = [pair for pair in zip(believed, expected, strict=True) if pair[0] != pair[1]]
            raise AssertionError(f"{len(wrong)} of {len(prompts)} prompts: believed and true: {wrong[:5]}")
        time.sleep(0.1)


def note(text: str) -> None:
    """Prints a measurement."""
    sys.stdout.write(text + "\n")
