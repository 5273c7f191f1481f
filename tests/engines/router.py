"""What Dynamo's indexer should believe of an engine: the location of each page in the index."""

from __future__ import annotations

import os
from collections.abc import Sequence

from vllm.utils.hashing import sha256
from vllm.v1.core import kv_cache_utils

from eventually import eventually
from indexer import Indexer, Reach, reach_of
from one_host import Scene, ask, forget, prompt
from pagetier.client import Client
from pagetier.client.hashing import mixed_into
from vllm_engine import VllmEngine


class Truth:
    """Where the pages of prompts are, read from the index.

    Of several groups it reads the one that has the most pages of a prompt: that with full attention.

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
        return reach_of(self.located(client, prompt), gpu, self._page_tokens)

    def located(self, client: Client, prompt: list[int]) -> bytes:
        """Returns the tiers of each full page."""
        all_spaces = self._scene.daemon.observer().spaces()
        digests = [space.digest for space in all_spaces if space.page_tokens == self._page_tokens]
        assert client.session is not None
        hashes, nothing = self._hashes(prompt), bytes(len(prompt) // self._page_tokens)
        found = [client.session.locate(mixed_into(hashes, digest)) for digest in digests]
        return max(found, key=lambda tiers: len(tiers) - tiers.count(0), default=nothing)

    def _hashes(self, prompt: list[int]) -> list[bytes]:
        hashes: list[bytes] = []
        for page in range(len(prompt) // self._page_tokens):
            tokens = prompt[page * self._page_tokens : (page + 1) * self._page_tokens]
            hashes.append(kv_cache_utils.hash_block_tokens(sha256, hashes[-1] if hashes else None, tokens))
        return hashes


def agree(
    indexer: Indexer,
    truth: Truth,
    client: Client,
    prompts: Sequence[list[int]],
    worker: str = "1",
) -> list[Reach]:
    """Waits until the indexer believes of each prompt what is true, and returns what it believes."""
    believed: list[Reach] = []
    wrong: list[tuple[Reach, Reach]] = []

    def are_right() -> bool:
        believed[:] = indexer.reach(prompts, worker)
        expected = [truth.reach(client, one, seen["gpu"]) for one, seen in zip(prompts, believed, strict=True)]
        wrong[:] = [pair for pair in zip(believed, expected, strict=True) if pair[0] != pair[1]]
        return not wrong

    assert eventually(are_right), f"{len(wrong)} of {len(prompts)}: believed and true: {wrong[:5]}"
    return believed


def forget_gpu(indexer: Indexer, engine: VllmEngine, prompts: Sequence[list[int]]) -> None:
    """Empties vLLM's own prefix cache, which vLLM announces with its next step, until the indexer has heard it."""
    forget(engine)
    ask(engine, prompt(1, 20), tokens=1)
    heard = lambda: not any(one["gpu"] for one in indexer.reach(prompts, "1"))  # noqa: E731
    assert eventually(heard), "the indexer still believes in pages on the GPU"


def wait_until_heard(indexer: Indexer, engine: VllmEngine, page_tokens: int, worker: str = "1") -> None:
    """Lets an engine answer new prompts until the indexer knows one: it may subscribe only after the first events."""
    for number in range(60):
        one = prompt(5000 + number, 2 * page_tokens + 7)
        ask(engine, one, tokens=1)
        if eventually(lambda one=one: indexer.reach([one], worker)[0]["gpu"] > 0, 0.5):  # type: ignore[misc]
            return
    raise AssertionError("the indexer has heard nothing")
