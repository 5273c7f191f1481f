"""Dynamo's own indexer, subscribed to SGLang's publisher, believes of prompts exactly what a match would find."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path

from disk_daemon import DiskDaemon
from eventually import eventually
from indexer import Indexer, Reach, indexing, reach_of, require_indexer
from pagetier.client import Client
from pagetier.client.hashing import mixed_into
from sglang_engine import SglangEngine
from sglang_model import Spec, prompt

require_indexer()

SPEC = Spec("mha", 16, ranks=2)
PAGES = 5
NUMBERS = range(12)
PROMPTS = [prompt(number, PAGES * SPEC.page).tolist() for number in NUMBERS]


def hashes_of(tokens: list[int]) -> bytes:
    """Returns SGLang's hashes of the pages of a prompt."""
    digest, hashes = b"", []
    for page in range(0, len(tokens), SPEC.page):
        words = b"".join(token.to_bytes(4, "little") for token in tokens[page : page + SPEC.page])
        digest = sha256(digest + words).digest()
        hashes.append(digest)
    return b"".join(hashes)


def agree(indexer: Indexer, daemon: DiskDaemon, client: Client, gpu: Sequence[int]) -> list[Reach]:
    """Waits until the indexer believes of each prompt what is true, and returns what it believes.

    The engine does no step. `gpu` are the tokens of each prompt in the engine's own cache.
    """
    (space,) = daemon.observer().spaces()
    assert client.session is not None
    session, believed, expected = client.session, list[Reach](), list[Reach]()

    def are_right() -> bool:
        believed[:] = indexer.reach(PROMPTS, "1")
        located = [session.locate(mixed_into(hashes_of(one), space.digest)) for one in PROMPTS]
        expected[:] = [reach_of(one, tokens, SPEC.page) for one, tokens in zip(located, gpu, strict=True)]
        return believed == expected

    assert eventually(are_right), (believed, expected)
    return believed


def is_heard(indexer: Indexer, engine: SglangEngine) -> bool:
    """Returns whether the indexer has subscribed. Pages are announced again, since it may have missed them before."""
    engine.reset()
    engine.poll()
    return indexer.reach(PROMPTS, "1")[0]["cpu"] > 0


def test_stores_moves_and_removals_are_believed(tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/events"
    with (
        DiskDaemon(1024, "256MiB") as daemon,
        daemon.client() as client,
        indexing(SPEC.page, {"1": endpoint}, tmp_path) as indexer,
        SglangEngine(SPEC, daemon.socket, publish=endpoint) as engine,
    ):
        daemon.wait_open()
        whole, count = PAGES * SPEC.page, len(PROMPTS)
        everywhere, nowhere = [whole] * count, [0] * count
        agreed = partial(agree, indexer, daemon, client)
        engine.insert(NUMBERS[0], PAGES)
        assert eventually(lambda: is_heard(indexer, engine))
        for number in NUMBERS:
            engine.insert(number, PAGES)
        assert agreed(everywhere) == [{"gpu": whole, "cpu": whole, "disk": whole}] * count
        engine.evict(1024)
        engine.poll()
        assert agreed(nowhere) == [{"gpu": 0, "cpu": whole, "disk": whole}] * count
        daemon.save()
        daemon.flush("memory")
        assert agreed(nowhere) == [{"gpu": 0, "cpu": 0, "disk": whole}] * count
        engine.insert(NUMBERS[0], PAGES)
        assert agreed([whole, *nowhere[1:]])[0] == {"gpu": whole, "cpu": whole, "disk": whole}
        engine.reset()
        engine.poll()
        assert agreed(nowhere)[1] == {"gpu": 0, "cpu": 0, "disk": whole}
        daemon.kill_worker()
        daemon.wait_open(restarts=1)
        assert agreed(nowhere)[1]["disk"] == whole
        daemon.flush()
        assert agreed(nowhere) == [{"gpu": 0, "cpu": 0, "disk": 0}] * count
