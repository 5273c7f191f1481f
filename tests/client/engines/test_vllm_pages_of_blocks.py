"""Pages of several blocks of vLLM: what is copied of them, which are stored, and what they are named."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from secrets import token_hex
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from eventually import PATIENCE_S
from fake_vllm_config import group, vllm_config
from pagetier.client import Client
from pagetier.client.engines.vllm.counters import ConnectorCounters
from pagetier.client.engines.vllm.gpu_pages import GpuPages
from pagetier.client.engines.vllm.load_planner import load_command
from pagetier.client.engines.vllm.messages import GroupLoad, LoadCommand, StoreCommand
from pagetier.client.engines.vllm.namespace import PageShape
from pagetier.client.engines.vllm.paged_group import PagedGroup
from pagetier.client.engines.vllm.request_state import RequestState
from pagetier.client.engines.vllm.settings import ConnectorSettings
from pagetier.client.engines.vllm.setup import namespaces_of, open_scheduler, use_pages
from pagetier.client.engines.vllm.store_planner import late_store_commands, store_commands, take_blocks
from pagetier.client.engines.vllm.worker import WorkerHalf
from pagetier.client.engines.weights import ModelIdentity
from pagetier.client.groups import FullAttention, Group, SlidingWindow
from pagetier.kernels.config.settings_file import SettingsError, load_settings
from pagetier.kernels.layout.page_layout import PageLayout, Rows
from pagetier.shm._core import KEY_BYTES
from running_daemon import RunningDaemon, namespace
from vllm_caches import BLOCKS, CACHES, TOKENS, MambaSpec, VllmCache
from vllm_steps import IDLE, FreeBlocks, hashed, request, step
from vllm_worker_world import ends, same, worker_of

ATTENTION = [name for name, cache in CACHES.items() if not isinstance(cache().spec, MambaSpec)]
PAGE_BLOCKS = 3
BLOCK = 4
TO_STORE = (7, 2, 19, 23, 1, 12)
TO_LOAD = (3, 22, 4, 11, 8, 15)


def worker_with_pages(client: Client, cache: VllmCache, salt: str) -> WorkerHalf:
    """Returns a worker whose scheduler has chosen pages of several blocks."""
    worker = worker_of(client, cache, salt=salt)
    groups = SimpleNamespace(kv_cache_groups=[group(TOKENS)])
    shape = PageShape(worker.rank_groups[0].cache.page)
    use_pages(worker, vllm_config(), groups, [shape], ModelIdentity("weights"), PAGE_BLOCKS)
    (its,) = namespaces_of(vllm_config(), groups, [shape.of_blocks(PAGE_BLOCKS)], ModelIdentity("weights"), salt)
    worker.use_namespaces([its])
    return worker


def store(worker: WorkerHalf, blocks: Sequence[int], salt: str) -> None:
    keys = worker._namespaces[0].keys(range(len(blocks) * TOKENS))
    worker.store([StoreCommand("storing", 0, 0, keys.data, tuple(blocks), salt)])
    ends(worker)


def load(worker: WorkerHalf, client: Client, blocks: Sequence[int]) -> set[str]:
    """Returns the failed loads."""
    with client.match(worker._namespaces[0].keys(range(len(blocks) * TOKENS))) as match:
        worker.load([LoadCommand("loading", (GroupLoad(0, match.to_handle(), tuple(blocks)),))])
    done = ends(worker)
    assert done.loaded == {"loading"} and 0 not in done.blocks
    return set(done.failed)


@pytest.mark.parametrize("name", ATTENTION)
@pytest.mark.parametrize("kept", range(PAGE_BLOCKS))
def test_blocks_of_pages_come_back_but_for_those_that_vllm_has(name: str, kept: int, daemon: RunningDaemon) -> None:
    salt, source, target = token_hex(8), CACHES[name](), CACHES[name]()
    source.fill(1)
    target.fill(2)
    before = [target.page(block) for block in range(BLOCKS)]
    with daemon.client() as client:
        store(worker_with_pages(client, source, salt), TO_STORE, salt)
        targets = (*[0] * kept, *TO_LOAD[kept:])
        assert not load(worker_with_pages(client, target, salt), client, targets)
    for block in range(BLOCKS):
        expected = source.page(TO_STORE[targets.index(block)]) if block in targets and block else before[block]
        assert same(target.page(block), expected), f"block {block}"


def test_a_page_without_one_of_its_blocks_is_not_stored(daemon: RunningDaemon) -> None:
    salt, source = token_hex(8), CACHES["heads first"]()
    with daemon.client() as client:
        worker = worker_with_pages(client, source, salt)
        store(worker, (7, 2, 19, 23, 0, 12), salt)
        with client.match(worker._namespaces[0].keys(range(6 * TOKENS))) as match:
            assert len(match) == 1
        assert load(worker, client, TO_LOAD) == {"loading"}, "the second page is missing"


def state_of(
    kind: Group, tokens: int, table: list[int], *, computed: int = 0, blocks: int = PAGE_BLOCKS
) -> RequestState:
    one = RequestState(
        request(tokens, computed, tokens // BLOCK),
        [PagedGroup(kind, namespace(kind.page_tokens, group=repr(kind)), blocks, strong=True, blocks=blocks)],
    )
    one.tables = [table]
    return one


def test_a_store_has_the_blocks_of_whole_pages_and_the_hashes_of_their_last_blocks() -> None:
    one = state_of(FullAttention(12), 40, [*range(1, 11)])
    (command,) = store_commands({"one": one}, step(32))
    assert command.blocks == (1, 2, 3, 4, 5, 6) and command.pages == 2
    assert command.keys == one.groups[0].keys(hashed(10)[2:6:3]).data
    one.request.num_computed_tokens = 32
    (command,) = store_commands({"one": one}, step(8))
    assert (command.first, command.blocks) == (2, (7, 8, 9))


def test_pages_whose_first_blocks_are_outside_of_a_window_are_not_stored() -> None:
    """vLLM frees blocks, and a later page may be in them."""
    one = state_of(SlidingWindow(12, window=13), 48, [*range(1, 13)], computed=20)
    (command,) = store_commands({"one": one}, step(28))
    assert (command.first, command.blocks) == (1, (4, 5, 6, 7, 8, 9, 10, 11, 12)), "token 8 is the first one kept"


def test_late_pages_without_freed_blocks_are_stored() -> None:
    one = state_of(SlidingWindow(12, window=13), 37, [*range(1, 10)], computed=36)
    (command,) = late_store_commands(one, [[0, 0, 3, 4, 5, 6, 7, 8, 9]])
    assert command.blocks == (0, 0, 0, 4, 5, 6, 7, 8, 9)


def test_blocks_after_a_prefix_that_ends_within_a_page_are_written() -> None:
    one = state_of(FullAttention(12), 40, [])
    new = SimpleNamespace(req_id="one", block_ids=[[*range(1, 11)]], num_computed_tokens=16)
    cached = SimpleNamespace(req_ids=[], new_block_ids=[])
    output = SimpleNamespace(scheduled_new_reqs=[new], scheduled_cached_reqs=cached, num_scheduled_tokens={})
    assert take_blocks({"one": one}, output) == {5, 6, 7, 8, 9, 10}


def free_block(number: int, content: str | None = None) -> Any:
    return SimpleNamespace(block_id=number, is_null=number == 0, block_hash=content)


@pytest.mark.parametrize(
    ("contents", "written"),
    [
        ([None] * 6, (1, 2, 3, 4, 5, 6)),
        (["a", None, None, None, None, None], (0, 2, 3, 4, 5, 6)),
        (["a", "b", "c", None, None, None], (4, 5, 6)),
        (["a", "b", "c", "d", None, None], (0, 5, 6)),
        (["a", None, "c", None, None, None], ()),
    ],
)
def test_of_a_page_only_its_end_is_written(
    contents: list[str | None], written: tuple[int, ...], daemon: RunningDaemon
) -> None:
    """A page of which vLLM had only blocks in the middle could not be loaded around them."""
    with daemon.client() as client:
        one = state_of(FullAttention(12), 30, [])
        client.store(one.keys[0], [bytes(8)] * 2)
        match = client.find_groups(one.keys_after(0))
        found = SimpleNamespace(match=match, begins=0, tokens=24)
        one.offered = 24
        blocks = [free_block(at, content) for at, content in enumerate(contents, 1)]
        (command,) = load_command(one, found, [blocks], 24).groups  # type: ignore[arg-type]
        assert len(command.pages) == len(written) // PAGE_BLOCKS
        assert not written or command.blocks == written
        match.release()


def test_a_page_leaves_the_gpu_with_its_last_block() -> None:
    pages = GpuPages(FreeBlocks(8), 1, ConnectorCounters())
    keys = bytes(range(64))
    assert not [*pages.remember([StoreCommand("a", 0, 0, keys, (11, 8, 12, 13), "salt", before=b"")])]
    assert len(pages) == 2
    (command,) = pages.plan({}, IDLE, {99})
    assert (command.first, command.blocks, command.keys) == (0, (11, 8), keys[:KEY_BYTES])


def test_a_page_of_which_a_block_has_other_content_is_lost() -> None:
    blocks = FreeBlocks(8)
    pages = GpuPages(blocks, 1, ConnectorCounters())
    assert not [*pages.remember([StoreCommand("a", 0, 0, bytes(KEY_BYTES), (11, 8), "salt", before=b"")])]
    blocks.unhashed = [11]
    assert not [*pages.plan({}, IDLE, {99})]


def test_the_scheduler_chooses_the_blocks_of_a_page_for_all_divisions_of_the_ranks(tmp_path: Any) -> None:
    """Alone the stages would choose 8 and 5 blocks, and hits would end at multiples of 40."""
    stages = [PageShape(PageLayout(16, ((Rows("k", "uint8", 1, 1152),),) * layers)) for layers in (20, 21)]
    groups = SimpleNamespace(kv_cache_groups=[group(16)])
    config = vllm_config(str(tmp_path))
    settings = ConnectorSettings(socket=str(tmp_path / "none"), weights="same")
    pending = open_scheduler(config, groups, stages, SimpleNamespace(hash_block_size=16), settings)
    assert pending.wait(PATIENCE_S)
    half = pending.open()
    assert half.page_blocks == 8
    assert [one.kind.page_tokens for one in half._groups] == [128, 128]
    assert [one.hashes for one in half._groups] == [8, 8]
    assert [one.namespace.layout for one in half._groups] == [stage.of_blocks(8).page.layout for stage in stages]
    half.close()


def test_pages_of_other_blocks_have_other_names() -> None:
    """The bytes of a block may be in an order that depends on its size."""
    page, names = PageShape(PageLayout(16, ((Rows("kv", "uint8", 1, 64),),))), set()
    for size, blocks in ((16, 4), (32, 2), (64, 1)):
        groups = SimpleNamespace(kv_cache_groups=[group(size)])
        shape = msgspec.structs.replace(page, blocks=blocks)
        (space,) = namespaces_of(vllm_config(), groups, [shape], ModelIdentity("weights"), "")
        assert space.page_tokens == 64
        names.add(space.digest)
    assert len(names) == 3


def test_a_settings_file_that_was_damaged_since_the_start_does_not_end_the_engine(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = worker_of(client, CACHES[ATTENTION[0]](), salt=token_hex(8))
    (tmp_path / "copy.toml").write_text("damaged")
    monkeypatch.setenv("PAGETIER_COPY_CONFIG", str(tmp_path / "copy.toml"))
    with pytest.raises(SettingsError):
        load_settings()
    page = worker.rank_groups[0].cache.page
    worker.use_pages([PageLayout(PAGE_BLOCKS * page.tokens, page.layers)])
    assert worker.rank_groups[0].blocks == PAGE_BLOCKS
    worker.close()
