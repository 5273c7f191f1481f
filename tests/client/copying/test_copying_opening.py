"""A copier for whatever device a cache is on."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from pagetier.client import Namespace
from pagetier.client.copying import open_copier
from pagetier.kernels import caches
from pagetier.kernels.device import DeviceError
from pagetier.kernels.page import PageOrder
from pagetier.kernels.settings import COPY_VARIABLE, SettingsError
from pagetier.kernels.slots import slot_map
from pagetier.kernels.transfer import PagedCache
from running import RunningDaemon

TOKENS, LONG_S = 8, 30.0


def cache_of(fill: int) -> tuple[list[np.ndarray[tuple[int, ...], np.dtype[np.uint16]]], PagedCache]:
    tensors = [np.full((2, 12, 4, 2, 8), fill + layer, np.uint16) for layer in range(3)]
    layout = caches.kv_first(tensors)
    return tensors, PagedCache(layout, PageOrder.of(layout, TOKENS))


def test_a_cache_in_host_memory_is_stored_and_loaded() -> None:
    (stored, one), (loaded, other) = cache_of(5), cache_of(100)
    space = Namespace(model="test", dtype="uint16", page_tokens=TOKENS, layout=one.page.layout)
    keys, slots = space.keys(range(5 * TOKENS)), slot_map(np.arange(10), 5, TOKENS, 4)
    with RunningDaemon() as daemon, daemon.client() as client:
        writer, reader = open_copier(client, one), open_copier(client, other)
        assert writer.store(keys, slots).wait(LONG_S).stored == 5
        with client.match(keys) as match:
            load = reader.load(match, slots)
        assert load.pages == 5 and load.wait(2, LONG_S) and load.wait_ended(LONG_S)
        assert sum(slot["counts"]["loaded_pages"] for slot in daemon.slots()) == 5
        assert writer.close(LONG_S) and reader.close(LONG_S) and reader.close(LONG_S)
    for layer in range(3):
        assert np.array_equal(loaded[layer][:, :10], stored[layer][:, :10])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_told() -> None:
    _, paged = cache_of(1)
    elsewhere = PagedCache(msgspec.structs.replace(paged.cache, device="cuda:0"), paged.page)
    with RunningDaemon() as daemon, daemon.client() as client, pytest.raises(DeviceError, match="cuda:0"):
        open_copier(client, elsewhere)


def test_a_configuration_that_can_not_be_used_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "copy.toml").write_text('backlog = "-1s"')
    monkeypatch.setenv(COPY_VARIABLE, str(tmp_path / "copy.toml"))
    with RunningDaemon() as daemon, daemon.client() as client, pytest.raises(SettingsError, match="backlog"):
        open_copier(client, cache_of(1)[1])
