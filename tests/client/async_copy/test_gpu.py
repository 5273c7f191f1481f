"""Copiers on a real GPU with a real daemon: exact bytes, and an engine that is killed during transfers."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

from copying_engine import CopyingEngine, slots_of
from eventually import PATIENCE_S, eventually
from pagetier.client import Client, Keys, Namespace
from pagetier.client.async_copy import AsyncCopier, open_copier
from pagetier.kernels.layout import engine_layouts
from pagetier.kernels.layout.page_layout import PageLayout
from pagetier.kernels.layout.slot_map import SlotMap, slot_map
from pagetier.kernels.layout.transfer import PagedCache
from running_daemon import RunningDaemon

LAYERS, BLOCKS, TOKENS, HEADS, DIM, PAGE_TOKENS = 4, 64, 16, 4, 128, 32
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")]


class GpuEngine:
    """A cache on the GPU, and its copier."""

    def __init__(self, client: Client, seed: int) -> None:
        generator = torch.Generator("cuda:0").manual_seed(seed)
        shape = (2, BLOCKS, TOKENS, HEADS, DIM)
        self.tensors: list[Any] = [
            torch.randint(0, 2**15, shape, dtype=torch.int16, device="cuda:0", generator=generator)
            for _ in range(LAYERS)
        ]
        layout = engine_layouts.kv_first(self.tensors)
        self.paged = PagedCache(layout, PageLayout.of(layout, PAGE_TOKENS))
        self.copier: AsyncCopier = open_copier(client, self.paged)

    def keys(self, prompt: int, pages: int) -> Keys:
        space = Namespace(model="gpu", dtype="int16", page_tokens=PAGE_TOKENS, layout=self.paged.page.layout)
        return space.keys(range(prompt << 16, (prompt << 16) + PAGE_TOKENS * pages))

    def of(self, slots: SlotMap) -> Any:
        """Returns the content of the blocks, in the order of the request."""
        blocks = torch.from_numpy(np.array(slots.blocks)).long().to("cuda:0")
        return torch.stack([tensor[:, blocks] for tensor in self.tensors]).cpu()


def request(seed: int, pages: int) -> SlotMap:
    blocks = np.random.default_rng(seed).permutation(BLOCKS)[: pages * PAGE_TOKENS // TOKENS]
    return slot_map(blocks, pages, PAGE_TOKENS, TOKENS)


def test_pages_are_stored_and_loaded_byte_by_byte() -> None:
    with RunningDaemon("256MiB", "1MiB") as daemon, daemon.client() as client:
        one, other = GpuEngine(client, 1), GpuEngine(client, 2)
        assert eventually(lambda: client.attachment.arenas.progress == 1.0), client.attachment.arenas.state
        for prompt in range(20):
            keys, there, here = one.keys(prompt, 16), request(prompt, 16), request(prompt + 99, 16)
            wanted = one.of(there)
            assert one.copier.store(keys, there).wait(PATIENCE_S).stored == 16
            for tensor in other.tensors:
                tensor.fill_(-1)
            done = torch.cuda.Event()
            done.record(torch.cuda.current_stream())
            with client.match(keys) as match:
                load = other.copier.load(match, here, after=done)
            stream = torch.cuda.current_stream()
            assert load.pages == 16 and load.make_stream_wait(stream, LAYERS - 1, PATIENCE_S)
            assert torch.equal(other.of(here), wanted)
        assert one.copier.close(PATIENCE_S) and other.copier.close(PATIENCE_S)


_ENGINE = """
import sys
from test_gpu import GpuEngine, request
from pagetier.client import Client
client = Client(sys.argv[1])
assert client.wait_attached(30)
engine = GpuEngine(client, 7)
stores = []
for prompt in range(1000, 100000):
    stores.append(engine.copier.store(engine.keys(prompt, 16), request(prompt, 16)))
    if len(stores) > 8:
        stores.pop(0).wait(30)
    if prompt == 1010:
        print("storing", flush=True)
"""


def test_an_engine_that_is_killed_in_the_middle_of_transfers_does_not_disturb_others() -> None:
    with RunningDaemon("256MiB", "1MiB") as daemon, daemon.client() as client:
        mine, slots = CopyingEngine(client, 1), slots_of(24)
        for turn in range(5):
            path = [str(place) for place in (*sys.path, __file__.rpartition("/")[0])]
            command = [sys.executable, "-c", f"import sys; sys.path[:] = {path!r}\n{_ENGINE}", str(daemon.socket)]
            with subprocess.Popen(command, stdout=subprocess.PIPE) as engine:
                assert engine.stdout is not None and engine.stdout.readline() == b"storing\n"
                for _ in range(5 + 5 * turn):
                    mine.store_and_load(500, slots)
                engine.kill()
            mine.store_and_load(500, slots)
            assert eventually(lambda: daemon.header().open_entries == 0)
            assert daemon.findings() == []
