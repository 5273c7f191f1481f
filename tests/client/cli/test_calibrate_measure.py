"""Tests the measurements of `pagetier-bench calibrate`: runs of one length, and each copy path at each length."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

from pagetier.client.cli.calibrate import measure as measuring
from pagetier.client.cli.calibrate.measure import (
    FRAME_BYTES,
    PAGE_BYTES,
    TOTAL_BYTES,
    CopyBatch,
    Scene,
    Timing,
    begin_plain,
    do,
    measure_gpu,
    speeds_of,
)
from pagetier.client.cli.calibrate.thresholds import COPY_PATHS, thresholds_of
from pagetier.kernels.config.copy_settings import CopySettings, PathName
from pagetier.kernels.device import Copy, DeviceError, Direction
from pagetier.kernels.gpu.runs import runs_of
from pagetier.kernels.host.host_device import HostDevice, HostStream

KIB, MIB = 1 << 10, 1 << 20

SMALL = Timing(total_bytes=4 * PAGE_BYTES, chunk_bytes=2 * PAGE_BYTES, rounds=2, runs=(4 * KIB, 2 * MIB))


def host_stream(path: PathName, direction: Direction) -> HostStream:
    return HostDevice().stream(direction)


@pytest.fixture(scope="module")
def scene() -> Scene:
    return Scene("cpu", SMALL.total_bytes)


@pytest.mark.parametrize("nbytes", [2 * KIB, 64 * KIB, 2 * MIB])
def test_a_scene_has_runs_of_the_given_length_and_covers_all_bytes(scene: Scene, nbytes: int) -> None:
    for direction in Direction:
        copies = scene.copies(direction, nbytes, SMALL.chunk_bytes)
        assert len(copies) == 2
        assert sum(copy.transfer.nbytes for copy in copies) == scene.nbytes
        lengths = np.concatenate([runs_of(copy).nbytes for copy in copies])
        assert lengths.sum() == scene.nbytes
        assert nbytes <= lengths.mean() <= 1.2 * nbytes  # two blocks are occasionally neighbours
        assert lengths.max() <= FRAME_BYTES


def work(scene: Scene, direction: Direction) -> CopyBatch:
    return CopyBatch(host_stream("dma", direction), scene.copies(direction, 4 * KIB, SMALL.chunk_bytes))


def test_a_load_restores_what_was_stored(scene: Scene) -> None:
    before = scene.cache.clone()
    do(work(scene, Direction.STORE))
    assert not torch.equal(scene.arena, before)
    scene.cache.zero_()
    do(work(scene, Direction.LOAD))
    assert torch.equal(scene.cache, before)
    other = Scene("cpu", scene.nbytes // 2)
    do(work(scene, Direction.STORE), work(other, Direction.LOAD))
    assert torch.equal(scene.cache, before)
    assert not other.cache.any()


def test_every_way_is_measured_at_every_length(scene: Scene) -> None:
    asked: list[tuple[str, Direction]] = []

    def stream(path: PathName, direction: Direction) -> HostStream:
        asked.append((path, direction))
        return host_stream(path, direction)

    found = list(speeds_of(scene, stream, Direction.STORE, SMALL))
    assert asked == [(path, Direction.STORE) for path in COPY_PATHS]
    assert [(speed.path, speed.run_bytes) for speed in found] == [
        (path, nbytes) for nbytes in SMALL.runs for path in COPY_PATHS
    ]
    assert all(0.001 < speed.gb_per_s < 1000 for speed in found)


def test_a_gpu_is_measured_in_both_directions(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def scene_of(device: str, nbytes: int) -> Scene:
        made.append(device)
        return Scene("cpu", nbytes)

    monkeypatch.setattr(measuring, "Scene", scene_of)
    monkeypatch.setattr(measuring, "gpu_streams", lambda index, settings: host_stream)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: f"GPU {index}")
    measured = measure_gpu(3, CopySettings(), SMALL)
    assert (made, measured.device) == (["cuda:3"], "GPU 3")
    assert set(measured.plain) == set(measured.speeds) == {"store", "load"}
    assert all(value > 0.001 for value in measured.plain.values())

    def no_room(device: str, nbytes: int) -> Scene:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(measuring, "Scene", no_room)
    with pytest.raises(DeviceError, match="cuda:0: CUDA out of memory"):
        measure_gpu(0, CopySettings(), SMALL)


def test_a_plain_copy_moves_all_bytes() -> None:
    scene = Scene("cpu", PAGE_BYTES)
    begin_plain(scene, Direction.STORE)
    assert torch.equal(scene.arena, scene.cache)
    scene.arena.zero_()
    begin_plain(scene, Direction.LOAD)
    assert not scene.cache.any()


def test_copies_that_do_not_complete_raise_an_error(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pagetier.client.cli.calibrate.measure._LONGEST_S", 0.05)
    stream = host_stream("dma", Direction.STORE)
    stream.after(threading.Event())
    with pytest.raises(DeviceError, match="did not complete within 0 s"):
        do(CopyBatch(stream, []))
    stream.close(0)


def test_a_failed_copy_raises_an_error(scene: Scene) -> None:
    class Broken(HostStream):
        def enqueue(self, copy: Copy) -> None:
            raise DeviceError("gone")

    with pytest.raises(DeviceError, match="gone"):
        list(speeds_of(scene, lambda path, direction: Broken(direction, 1), Direction.STORE, SMALL))


def test_the_memory_must_be_whole_pages() -> None:
    with pytest.raises(ValueError, match="no pages"):
        Scene("cpu", PAGE_BYTES + 1)
    assert TOTAL_BYTES % PAGE_BYTES == Timing().chunk_bytes % PAGE_BYTES == 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_a_gpu_is_measured() -> None:
    timing = Timing(total_bytes=64 * MIB, rounds=2, runs=(4 * KIB, 64 * KIB, 2 * MIB))
    measured = measure_gpu(0, CopySettings(), timing)
    for direction in ("store", "load"):
        assert len(measured.speeds[direction]) == 9
        assert all(0.1 < speed.gb_per_s < 1000 for speed in measured.speeds[direction])
        thresholds_of(measured.speeds[direction])
