"""A registered cache is matched, loaded and stored by tokens and block tables, on the host and as on a GPU."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from disk_daemon import write_through
from eventually import PATIENCE_S
from pagetier.client import Client, IncompleteLoadError, PagetierError, RegisteredCache
from running_daemon import RunningDaemon

ARENA = "64MiB"
LAYERS, BLOCKS, BLOCK, HEADS, DIM, PAGE = 2, 64, 16, 4, 32, 32
TOKENS = 3 * PAGE + 5
WRITTEN, READ = np.arange(31, -1, -1), np.arange(63, 31, -1)


class Engine:
    """An engine of one rank whose copies are those of the host or, over the host, those of a GPU."""

    def __init__(self, client: Client, copies: str, **options: Any) -> None:
        shape = (LAYERS, BLOCKS, 2, BLOCK, HEADS, DIM)
        self.tensors: Any = np.random.default_rng(7).integers(0, 2**15, shape, np.int16)
        if copies == "gpu":
            if not torch.cuda.is_available():
                pytest.skip("there is no GPU")
            self.tensors = torch.from_numpy(self.tensors).cuda()
        options = {"model": os.urandom(8).hex(), "page_tokens": PAGE, "layout": "flashinfer"} | options
        register: Any = client.register
        self.cache: RegisteredCache = register(list(self.tensors), **options)
        if copies == "device":
            self.cache.group._on_gpu = True
        self.prompt = list(range(TOKENS))

    def state(self, table: Any, tokens: range = range(3 * PAGE)) -> Any:
        """Returns a copy of the state of some tokens of the prompt, token by token."""
        at = np.asarray(tokens, np.int64)
        return self.values()[:, np.asarray(table)[at // BLOCK], :, at % BLOCK]

    def values(self) -> Any:
        """Returns all of the cache, on the host."""
        return self.tensors if isinstance(self.tensors, np.ndarray) else self.tensors.cpu().numpy()


@pytest.fixture(params=["host", "device", pytest.param("gpu", marks=pytest.mark.gpu)])
def engine(request: pytest.FixtureRequest, client: Client) -> Engine:
    return Engine(client, request.param)


def test_a_prompt_is_loaded_into_other_blocks(engine: Engine) -> None:
    assert engine.cache.store(engine.prompt, WRITTEN).stored == 3
    with engine.cache.match(engine.prompt) as hit:
        assert (hit.tokens, hit.available_tokens) == (3 * PAGE, 3 * PAGE)
        assert engine.cache.load(hit, READ, strict=True) == 3 * PAGE
    assert np.array_equal(engine.state(WRITTEN), engine.state(READ))
    assert engine.cache.store(engine.prompt, WRITTEN).present == 3


def test_pages_of_another_model_of_the_same_shape_are_not_loaded(engine: Engine, client: Client) -> None:
    other = Engine(client, "host")
    engine.cache.store(engine.prompt, WRITTEN)
    before = other.values().copy()
    with engine.cache.match(engine.prompt) as hit:
        with pytest.raises(ValueError, match="were given to the cache of"):
            other.cache.load(hit, READ)
        with pytest.raises(ValueError, match="were given to the cache of"):
            other.cache.async_load(hit, READ)
    assert np.array_equal(other.values(), before)


@pytest.mark.parametrize("copied", [lambda tensor: tensor, lambda tensor: tensor[:]], ids=["the same", "a view"])
def test_layers_that_share_one_tensor_are_stored_once(client: Client, copied: Callable[[Any], Any]) -> None:
    first, second = np.random.default_rng(7).integers(0, 2**15, (2, BLOCKS, 2, BLOCK, HEADS, DIM), np.int16)
    options: Any = {"model": os.urandom(8).hex(), "page_tokens": PAGE, "layout": "flashinfer"}
    cache = client.register([first, second, copied(first), copied(second)], **options)
    assert cache.namespace == client.register([first, second], **options).namespace
    assert cache.store(range(TOKENS), WRITTEN).stored == 3
    with cache.match(range(TOKENS)) as hit:
        assert cache.load(hit, READ, strict=True) == 3 * PAGE
    for tensor in (first, second):
        assert np.array_equal(tensor[WRITTEN[:6]], tensor[READ[:6]])


@pytest.mark.parametrize("skipped", [0, 5, PAGE, PAGE + BLOCK, 3 * PAGE, 4 * PAGE - 1])
def test_tokens_that_the_engine_has_are_not_overwritten(engine: Engine, skipped: int) -> None:
    engine.cache.store(engine.prompt, WRITTEN)
    before = engine.state(READ)
    with engine.cache.match(engine.prompt) as hit:
        assert engine.cache.load(hit, READ, skip_tokens=skipped) == max(3 * PAGE, skipped)
    cut = min(skipped, 3 * PAGE)
    assert np.array_equal(engine.state(READ, range(cut)), before[:cut])
    assert np.array_equal(engine.state(READ, range(cut, 3 * PAGE)), engine.state(WRITTEN, range(cut, 3 * PAGE)))


def test_a_short_block_table_is_filled_with_whole_pages(engine: Engine) -> None:
    engine.cache.store(engine.prompt, WRITTEN)
    with engine.cache.match(engine.prompt) as hit:
        assert engine.cache.load(hit, READ[:5]) == 2 * PAGE
        assert engine.cache.load(hit, []) == 0
        with pytest.raises(IncompleteLoadError, match=f"only {2 * PAGE} of {3 * PAGE} matched tokens") as failed:
            engine.cache.load(hit, READ[:5], strict=True)
        assert (failed.value.loaded, failed.value.matched) == (2 * PAGE, 3 * PAGE)
        assert issubclass(failed.type, PagetierError)


def test_a_prompt_that_is_not_cached_loads_nothing(engine: Engine) -> None:
    before = engine.values().copy()
    with engine.cache.match(engine.prompt) as hit:
        assert (hit.tokens, engine.cache.load(hit, READ, strict=True)) == (0, 0)
    assert np.array_equal(before, engine.values())


def test_hashes_replace_tokens(engine: Engine) -> None:
    hashes = [b"one", b"two", b"three"]
    assert engine.cache.store(hashes=hashes, block_table=WRITTEN).stored == 3
    with engine.cache.match(hashes=[*hashes, b"four"]) as hit:
        assert hit.tokens == engine.cache.load(hit, READ) == 3 * PAGE
    assert np.array_equal(engine.state(WRITTEN), engine.state(READ))
    assert engine.cache.match(engine.prompt).tokens == 0


def test_keys_replace_tokens(engine: Engine) -> None:
    keys = engine.cache.keys(engine.prompt, extra=b"image")
    assert engine.cache.store(keys, WRITTEN).stored == 3
    assert engine.cache.match(engine.prompt, extra=b"image").tokens == 3 * PAGE
    assert engine.cache.match(engine.prompt).tokens == 0


def test_copies_in_the_background(engine: Engine) -> None:
    assert engine.cache.async_store(engine.prompt, WRITTEN).wait(PATIENCE_S).stored == 3
    with engine.cache.match(engine.prompt) as hit:
        load = engine.cache.async_load(hit, READ, skip_tokens=PAGE)
    assert load.pages == 2 and all(load.wait(layer, PATIENCE_S) for layer in range(LAYERS))
    rest = range(PAGE, 3 * PAGE)
    assert np.array_equal(engine.state(WRITTEN, rest), engine.state(READ, rest))


def test_closing_the_client_ends_copies_in_the_background(daemon: RunningDaemon) -> None:
    with daemon.client(timeout=PATIENCE_S) as client:
        engine = Engine(client, "host")
        store = engine.cache.async_store(engine.prompt, WRITTEN)
    assert store.ended and store.wait(0).stored == 3
    assert engine.cache.async_store(engine.prompt, WRITTEN).wait(0).refused == 3


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ((None, WRITTEN), TypeError, "either tokens or hashes"),
        (((range(TOKENS)), WRITTEN[:5]), ValueError, "the block table has 5"),
        (((range(TOKENS)), WRITTEN + 60), ValueError, "block 91 does not exist"),
        (((range(TOKENS)), torch.zeros(6)), TypeError, "integers"),
        ((["a"], WRITTEN), TypeError, None),
    ],
)
def test_wrong_arguments_of_a_store_raise(
    engine: Engine, arguments: tuple[Any, ...], error: type[Exception], says: str | None
) -> None:
    with pytest.raises(error, match=says):
        engine.cache.store(*arguments)


def test_extra_without_tokens_raises_instead_of_being_ignored(engine: Engine) -> None:
    with pytest.raises(TypeError, match="extra belongs to tokens"):
        engine.cache.match(hashes=[b"one"], extra=b"image")
    with pytest.raises(TypeError, match="extra belongs to tokens"):
        engine.cache.store(engine.cache.keys(engine.prompt), WRITTEN, extra=b"image")


def test_threads_share_the_copier(client: Client) -> None:
    engine, barrier = Engine(client, "host"), threading.Barrier(8)

    def copier(_: int) -> object:
        barrier.wait()
        return engine.cache.copier()

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(copier, range(8)))) == 1


def test_a_prompt_without_a_full_page_is_no_error(engine: Engine) -> None:
    assert len(engine.cache.store([], [])) == len(engine.cache.store([1, 2, 3], WRITTEN)) == 0
    assert engine.cache.load(engine.cache.match([]), READ, strict=True) == 0


def test_a_store_of_no_full_page_says_so(client: Client, tmp_path: Path) -> None:
    """The counts, all of them 0, say neither that nothing was stored nor why."""
    caches = np.zeros((1, 2, 8, 16, 1, 8), np.float16)
    cache = client.register(caches, layout="flash_attention", model="short", page_tokens=64)
    assert repr(cache.store(range(63), range(4))) == "<StoreResult of no full page>"
    with Client(tmp_path / "none.sock", timeout=0) as alone:
        absent = alone.register(caches, layout="flash_attention", model="short", page_tokens=64)
        assert repr(absent.store(range(63), range(4))).startswith("<StoreResult of no full page: ")


def test_keys_of_another_cache_are_rejected(engine: Engine, client: Client) -> None:
    other = Engine(client, "host")
    with pytest.raises(ValueError, match="were given to the cache of"):
        engine.cache.match(other.cache.keys(engine.prompt))


def test_a_block_that_would_be_loaded_twice_is_rejected(engine: Engine) -> None:
    engine.cache.store(engine.prompt, WRITTEN)
    with engine.cache.match(engine.prompt) as hit, pytest.raises(ValueError, match="block 40 would be loaded twice"):
        engine.cache.load(hit, [40, 40, 41, 42, 43, 44])
    with engine.cache.match(engine.prompt) as hit, pytest.raises(ValueError, match="skip_tokens must be 0 or more"):
        engine.cache.load(hit, READ, skip_tokens=-1)


def test_without_a_daemon_stores_are_rejected_and_nothing_is_found(tmp_path: Path) -> None:
    with Client(tmp_path / "no.sock", timeout=0.2) as client:
        for copies in ("host", "device"):
            engine = Engine(client, copies)
            assert engine.cache.store(engine.prompt, WRITTEN).refused == 3
            assert engine.cache.load(engine.cache.match(engine.prompt), READ) == 0


@pytest.mark.parametrize("copies", ["host", "device", pytest.param("gpu", marks=pytest.mark.gpu)])
def test_pages_on_disk_are_loaded_in_time_or_not_at_all(copies: str) -> None:
    with write_through() as daemon, daemon.client(timeout=PATIENCE_S) as client:
        engine = Engine(client, copies)
        keys = engine.cache.keys(engine.prompt)
        assert engine.cache.store(keys, WRITTEN).stored == 3
        daemon.push_out(client, keys)
        with daemon.stopped_worker(), engine.cache.match(keys) as hit:
            assert (hit.tokens, hit.available_tokens) == (0, 3 * PAGE)
            assert engine.cache.load(hit, READ, timeout=0.2) == 0
        with engine.cache.match(keys) as hit:
            assert engine.cache.load(hit, READ, timeout=PATIENCE_S) == 3 * PAGE
        assert np.array_equal(engine.state(WRITTEN), engine.state(READ))


def test_engines_of_one_and_of_two_ranks_share_pages(client: Client) -> None:
    model = os.urandom(8).hex()
    whole = Engine(client, "host", model=model)
    ranks = [np.ascontiguousarray(whole.tensors[..., 2 * rank : 2 * rank + 2, :]) for rank in range(2)]
    for rank, tensors in enumerate(ranks):
        half = client.register(
            list(tensors), layout="flashinfer", model=model, page_tokens=PAGE, num_kv_heads=4, tp_rank=rank, tp_size=2
        )
        assert half.store(whole.prompt, WRITTEN).stored == 3
    with whole.cache.match(whole.prompt) as hit:
        assert whole.cache.load(hit, READ, strict=True) == 3 * PAGE
    assert np.array_equal(whole.state(WRITTEN), whole.state(READ))
