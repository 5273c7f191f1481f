"""Copiers for caches on any device."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from copying_engine import COPYING, LAYERS, CopyingEngine, slots_of
from eventually import PATIENCE_S, eventually
from fake_pinning_driver import PinningDriver
from pagetier.client import Client, Namespace
from pagetier.client.async_copy import AsyncCopier, open_copier
from pagetier.client.async_copy.copier import copier_pinning
from pagetier.kernels.config.settings_file import COPY_VARIABLE, SettingsError
from pagetier.kernels.device import Copy, DeviceError, Direction
from pagetier.kernels.host.host_device import HostDevice, HostStream
from pagetier.kernels.layout import engine_layouts
from pagetier.kernels.layout.frames import Frames
from pagetier.kernels.layout.page_layout import PageLayout
from pagetier.kernels.layout.slot_map import slot_map
from pagetier.kernels.layout.transfer import PagedCache
from running_daemon import RunningDaemon

TOKENS = 8


def cache_of(fill: int) -> tuple[list[np.ndarray[tuple[int, ...], np.dtype[np.uint16]]], PagedCache]:
    tensors = [np.full((2, 12, 4, 2, 8), fill + layer, np.uint16) for layer in range(3)]
    layout = engine_layouts.kv_first(tensors)
    return tensors, PagedCache(layout, PageLayout.of(layout, TOKENS))


def test_a_cache_in_host_memory_is_stored_and_loaded(client: Client, daemon: RunningDaemon) -> None:
    (stored, one), (loaded, other) = cache_of(5), cache_of(100)
    space = Namespace(model="test", dtype="uint16", page_tokens=TOKENS, layout=one.page.layout)
    keys, slots = space.keys(range(5 * TOKENS)), slot_map(np.arange(10), 5, TOKENS, 4)
    writer, reader = open_copier(client, one), open_copier(client, other)
    assert writer.store(keys, slots).wait(PATIENCE_S).stored == 5
    with client.match(keys) as match:
        load = reader.load(match, slots)
    assert load.pages == 5 and load.wait(2, PATIENCE_S) and load.wait_ended(PATIENCE_S)
    assert sum(slot.counts.loaded_pages for slot in daemon.slots()) == 5
    assert writer.close(PATIENCE_S) and reader.close(PATIENCE_S) and reader.close(PATIENCE_S)
    for layer in range(3):
        assert np.array_equal(loaded[layer][:, :10], stored[layer][:, :10])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_gpu_raises(client: Client) -> None:
    _, paged = cache_of(1)
    elsewhere = PagedCache(msgspec.structs.replace(paged.cache, device="cuda:0"), paged.page)
    with pytest.raises(DeviceError, match="cuda:0"):
        open_copier(client, elsewhere)


def test_an_invalid_configuration_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, client: Client) -> None:
    (tmp_path / "copy.toml").write_text('queue_limit = "-1s"')
    monkeypatch.setenv(COPY_VARIABLE, str(tmp_path / "copy.toml"))
    with pytest.raises(SettingsError, match="queue_limit"):
        open_copier(client, cache_of(1)[1])


class AskingStream(HostStream):
    """Asks before each copy whether its frames are pinned, as the stream of a GPU does."""

    def __init__(self, direction: Direction, pinned: Callable[[Frames], bool]) -> None:
        super().__init__(direction, 1)
        self._pinned = pinned

    def enqueue(self, copy: Copy) -> None:
        self._pinned(copy.frames)
        super().enqueue(copy)


class AskingDevice(HostDevice):
    """The host, as a device that needs pinned memory."""

    def __init__(self, pinned: Callable[[Frames], bool]) -> None:
        super().__init__()
        self._pinned = pinned

    def stream(self, direction: Direction) -> HostStream:
        return AskingStream(direction, self._pinned)


class PinningEngine(CopyingEngine):
    """An engine whose copier pins the arena with a fake driver."""

    def __init__(self, client: Client, driver: PinningDriver) -> None:
        super().__init__(client, 1)
        registrar = driver.register, driver.unregister
        self.copier: AsyncCopier = copier_pinning(client, self.paged, COPYING, registrar, AskingDevice)

    def store(self, prompt: int) -> int:
        """Returns how many of four pages were stored."""
        return self.copier.store(self.keys(prompt, 4), slots_of(4)).wait(PATIENCE_S).stored


def arenas_mapped(daemon: RunningDaemon) -> int:
    """Returns how often an arena of the daemon is mapped in this process."""
    return Path("/proc/self/maps").read_text().count(f"{daemon.name}.arena")


def test_after_the_daemon_has_stopped_its_arena_is_unpinned_and_unmapped_when_the_last_copy_has_ended() -> None:
    driver, after = PinningDriver(), threading.Event()
    with RunningDaemon() as daemon, daemon.client() as client:
        engine = PinningEngine(client, driver)
        assert eventually(lambda: client.attachment.arenas.progress == 1.0)
        assert engine.store(1) == 4 and arenas_mapped(daemon) == 1
        load = engine.load(engine.keys(1, 4), slots_of(4, 2), after=after)
        daemon.stop()
        assert eventually(lambda: client.session is None)
        assert not load.wait_ended(0.2) and len(driver.registered) == 1
        after.set()
        assert load.wait_ended(PATIENCE_S) and load.wait(LAYERS - 1, 0.0)
        assert eventually(lambda: not driver.registered and not arenas_mapped(daemon))
        daemon.start()
        assert client.wait_attached(PATIENCE_S) and engine.store(2) == 4
        assert eventually(lambda: client.attachment.arenas.progress == 1.0)
        assert engine.copier.close(PATIENCE_S) and not driver.registered and driver.wrong == []


def test_the_arena_of_segments_that_were_replaced_stays_pinned_under_a_load() -> None:
    driver, after = PinningDriver(), threading.Event()
    with RunningDaemon() as daemon, daemon.client() as client:
        engine = PinningEngine(client, driver)
        assert eventually(lambda: client.attachment.arenas.progress == 1.0)
        assert engine.store(1) == 4
        with client.match(engine.keys(1, 4)) as old:
            load = engine.copier.load(old, slots_of(4, 2), after=after)
            assert eventually(lambda: bool(engine.copier._loads._in_flight))
            daemon.stop()
            assert eventually(lambda: client.session is None)
            daemon.start()
            assert client.wait_attached(PATIENCE_S) and engine.store(2) == 4
            assert eventually(lambda: len(driver.registered) == 2)
            assert engine.copier.load(old, slots_of(4, 3)).pages == 4
            assert not load.wait_ended(0.2) and len(driver.registered) == 2
        del old  # a released match would keep the segments mapped too
        after.set()
        assert load.wait_ended(PATIENCE_S) and not load.failed
        assert eventually(lambda: len(driver.registered) == 1 and arenas_mapped(daemon) == 1)
        assert engine.copier.close(PATIENCE_S) and not driver.registered
        assert len(driver.began) == 2 and driver.wrong == []


def test_copiers_of_a_client_pin_the_arena_once_and_until_the_last_one_is_closed(client: Client) -> None:
    driver = PinningDriver()
    one, other = PinningEngine(client, driver), PinningEngine(client, driver)
    assert one.store(1) == 4 and other.store(2) == 4
    assert eventually(lambda: client.attachment.arenas.progress == 1.0)
    assert one.copier.close(PATIENCE_S) and one.copier.close(PATIENCE_S)
    assert other.store(3) == 4 and len(driver.registered) == 1
    assert other.copier.close(PATIENCE_S) and not driver.registered
    assert len(driver.began) == 1 and driver.wrong == []


def test_closing_a_copier_does_not_wait_longer_for_the_driver_than_its_timeout(client: Client) -> None:
    driver = PinningDriver()
    engine = PinningEngine(client, driver)
    assert eventually(lambda: client.attachment.arenas.progress == 1.0)
    driver.unpins.clear()
    assert not engine.copier.close(0.05) and len(driver.registered) == 1
    driver.unpins.set()
    assert engine.copier.close(PATIENCE_S) and not driver.registered


def test_a_copier_that_is_dropped_unpins_and_its_client_can_be_closed(client: Client, daemon: RunningDaemon) -> None:
    driver = PinningDriver()
    engine = PinningEngine(client, driver)
    assert engine.store(4) == 4
    assert eventually(lambda: client.attachment.arenas.progress == 1.0)
    del engine
    gc.collect()
    assert eventually(lambda: not driver.registered)
    client.close()
    assert eventually(lambda: not daemon.slots() and not arenas_mapped(daemon))


def test_a_client_that_is_closed_before_its_copier_releases_the_arena(client: Client, daemon: RunningDaemon) -> None:
    driver = PinningDriver()
    engine = PinningEngine(client, driver)
    assert engine.store(5) == 4
    client.close()
    assert eventually(lambda: not driver.registered and not arenas_mapped(daemon))
    assert engine.copier.close(PATIENCE_S)
