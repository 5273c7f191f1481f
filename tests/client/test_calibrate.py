"""`pagetier calibrate`: thresholds out of any table of speeds, measured on any device, and written once."""

from __future__ import annotations

import json
import math
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from pagetier.client.calibrate import calibrate
from pagetier.client.calibrate import measure as measuring
from pagetier.client.calibrate.decide import ALWAYS, ORDER, Speed, thresholds_of, way_of
from pagetier.client.calibrate.measure import (
    RUNS,
    TOTAL_BYTES,
    Measured,
    Timing,
    Work,
    begin_plain,
    do,
    measure_gpu,
    speeds_of,
)
from pagetier.client.calibrate.scene import FRAME_BYTES, PAGE_BYTES, Scene
from pagetier.kernels.device import Copy, DeviceError, Direction
from pagetier.kernels.host_device import HostDevice, HostStream
from pagetier.kernels.runs import runs_of
from pagetier.kernels.settings import COPY_VARIABLE, load_settings
from pagetier.kernels.thresholds import CopySettings, Thresholds, WayName

KIB, MIB = 1 << 10, 1 << 20
Table = Mapping[str, list[float]]


def speeds(table: Table, lengths: tuple[int, ...] = RUNS) -> list[Speed]:
    return [
        Speed(way, nbytes, value) for way, row in table.items() for nbytes, value in zip(lengths, row, strict=False)
    ]


def saturating(peak: float, cost_bytes: float) -> list[float]:
    """A way that takes as long for a run as it takes for so many bytes, and the bytes of the run."""
    return [peak * nbytes / (nbytes + cost_bytes) for nbytes in RUNS]


def speed_of(table: Table, thresholds: Thresholds, at: int) -> float:
    return table[way_of(thresholds, RUNS[at])][at]


def score(table: Table, thresholds: Thresholds) -> float:
    """What is to be as large as it can be: a kernel is worth it for more than 3 % alone."""
    taken = [(way_of(thresholds, nbytes), at) for at, nbytes in enumerate(RUNS)]
    return sum(math.log(table[way][at]) - (0 if way == "dma" else math.log(1.03)) for way, at in taken)


# --- deciding -------------------------------------------------------------------------------------------------


def test_two_ways_that_cross_meet_where_they_cross() -> None:
    # 45 = 50 x / (x + 4 KiB) at x = 36 KiB
    table = {"kernel": [45.0] * 11, "dma": saturating(50, 4 * KIB)}
    found = thresholds_of(speeds(table))
    assert found.kernel_below == found.staged_below
    assert 24 * KIB <= found.kernel_below <= 36 * KIB


def test_three_ways() -> None:
    table = {"kernel": [30.0] * 11, "staged": saturating(45, 2 * KIB), "dma": saturating(55, 40 * KIB)}
    found = thresholds_of(speeds(table))
    assert 3 * KIB <= found.kernel_below <= 5 * KIB
    assert 128 * KIB <= found.staged_below <= 256 * KIB


def test_one_way_that_is_always_the_best() -> None:
    for best, expected in (
        ("kernel", Thresholds(ALWAYS, ALWAYS)),
        ("staged", Thresholds(0, ALWAYS)),
        ("dma", Thresholds(0, 0)),
    ):
        table: Table = {way: [50.0 if way == best else 40.0] * 11 for way in ORDER}
        assert thresholds_of(speeds(table)) == expected


def test_of_equals_the_one_that_takes_no_processors() -> None:
    table: dict[str, list[float]] = {way: [50.0] * 11 for way in ORDER}
    assert thresholds_of(speeds(table)) == Thresholds(0, 0)
    table["kernel"] = [51.0] * 11
    assert thresholds_of(speeds(table)) == Thresholds(0, 0)
    table["dma"] = [40.0] * 11
    table["kernel"] = table["staged"]
    assert thresholds_of(speeds(table)) == Thresholds(ALWAYS, ALWAYS)


def test_one_odd_speed_decides_nothing() -> None:
    table = {"kernel": [45.0] * 11, "staged": [5.0] * 11, "dma": saturating(50, 4 * KIB)}
    expected = thresholds_of(speeds(table))
    table["dma"][0] = 60.0
    table["kernel"][9] = 55.0
    assert thresholds_of(speeds(table)) == expected


def test_what_was_not_measured_is_not_chosen() -> None:
    table = {"kernel": [45.0] * 11}
    assert thresholds_of(speeds(table)) == Thresholds(ALWAYS, ALWAYS)
    table = {"dma": [45.0] * 11, "kernel": [math.nan, 0.0, -1.0, math.inf], "host": [99.0] * 11}
    assert thresholds_of(speeds(table)) == Thresholds(0, 0)
    assert thresholds_of([Speed("kernel", 4096, 1.0), Speed("dma", 8192, 1.0)]) == Thresholds(6 * KIB, 6 * KIB)
    for nothing in ([], [Speed("kernel", 4096, 0.0)], [Speed("host", 4096, 1.0)]):
        with pytest.raises(ValueError, match="no speed"):
            thresholds_of(nothing)


any_table = st.dictionaries(
    st.sampled_from([*ORDER, "host"]), st.lists(st.floats(allow_nan=True), max_size=11), min_size=1
)
positive_table = st.fixed_dictionaries(
    {way: st.lists(st.floats(0.01, 1000), min_size=11, max_size=11) for way in ORDER}
)


@given(any_table, st.randoms())
def test_any_table_at_all_gives_thresholds_or_a_clear_refusal(table: Table, rng: object) -> None:
    rows = speeds(table)
    try:
        found = thresholds_of(rows)
    except ValueError as error:
        assert str(error) == "no speed was measured"
        return
    assert 0 <= found.kernel_below <= found.staged_below <= ALWAYS
    rng.shuffle(rows)  # type: ignore[attr-defined]
    assert thresholds_of(rows) == found


@given(positive_table)
def test_no_other_two_cuts_are_better_on_the_whole(table: Table) -> None:
    best = score(table, thresholds_of(speeds(table)))
    edges = [0, *(nbytes + 1 for nbytes in RUNS)]
    for first, kernel_below in enumerate(edges):
        for staged_below in edges[first:]:
            assert score(table, Thresholds(kernel_below, staged_below)) <= best + 1e-6


@given(positive_table, st.floats(0.1, 10))
def test_only_ratios_count(table: Table, factor: float) -> None:
    scaled = {way: [value * factor for value in row] for way, row in table.items()}
    found = thresholds_of(speeds(table)), thresholds_of(speeds(scaled))
    assert score(table, found[0]) == pytest.approx(score(table, found[1]), abs=1e-6)  # ties may go either way


@given(
    peaks=st.tuples(st.floats(20, 40), st.floats(30, 50), st.floats(40, 60)),
    costs=st.tuples(st.floats(1, 500), st.floats(500, 8000), st.floats(4000, 60000)),
    noise=st.lists(st.floats(0.95, 1.05), min_size=33, max_size=33),
)
def test_with_noise_what_is_chosen_is_nearly_the_best(
    peaks: tuple[float, ...], costs: tuple[float, ...], noise: list[float]
) -> None:
    clean: Table = {way: saturating(peak, cost) for way, peak, cost in zip(ORDER, peaks, costs, strict=True)}
    noisy: Table = {
        way: [value * noise[11 * row + at] for at, value in enumerate(clean[way])] for row, way in enumerate(ORDER)
    }
    found = thresholds_of(speeds(noisy))
    losses = [1 - speed_of(clean, found, at) / max(clean[way][at] for way in ORDER) for at in range(11)]
    assert sum(losses) / len(losses) < 0.13 + 1e-9  # the noise both ways, and the handicap
    assert max(losses) < 0.5


# --- what is measured -----------------------------------------------------------------------------------------

SMALL = Timing(total_bytes=4 * PAGE_BYTES, chunk_bytes=2 * PAGE_BYTES, rounds=2, runs=(4 * KIB, 2 * MIB))


def host_stream(way: WayName, direction: Direction) -> HostStream:
    return HostDevice().stream(direction)


@pytest.fixture(scope="module")
def scene() -> Scene:
    return Scene("cpu", SMALL.total_bytes)


@pytest.mark.parametrize("nbytes", [2 * KIB, 64 * KIB, 2 * MIB])
def test_a_scene_has_runs_of_just_this_length_and_covers_all_bytes(scene: Scene, nbytes: int) -> None:
    for direction in Direction:
        copies = scene.copies(direction, nbytes, SMALL.chunk_bytes)
        assert len(copies) == 2
        assert sum(copy.transfer.nbytes for copy in copies) == scene.nbytes
        lengths = np.concatenate([runs_of(copy).nbytes for copy in copies])
        assert lengths.sum() == scene.nbytes
        assert nbytes <= lengths.mean() <= 1.2 * nbytes  # now and then two blocks are neighbours by chance
        assert lengths.max() <= FRAME_BYTES


def work(scene: Scene, direction: Direction) -> Work:
    return Work(host_stream("dma", direction), scene.copies(direction, 4 * KIB, SMALL.chunk_bytes))


def test_what_was_stored_is_loaded_to_where_it_was(scene: Scene) -> None:
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

    def stream(way: WayName, direction: Direction) -> HostStream:
        asked.append((way, direction))
        return host_stream(way, direction)

    found = list(speeds_of(scene, stream, Direction.STORE, SMALL))
    assert asked == [(way, Direction.STORE) for way in ORDER]
    assert [(speed.way, speed.run_bytes) for speed in found] == [
        (way, nbytes) for nbytes in SMALL.runs for way in ORDER
    ]
    assert all(0.001 < speed.gb_per_s < 1000 for speed in found)


def test_a_gpu_is_measured_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_plain_copy_moves_all_as_it_lies() -> None:
    scene = Scene("cpu", PAGE_BYTES)
    begin_plain(scene, Direction.STORE)
    assert torch.equal(scene.arena, scene.cache)
    scene.arena.zero_()
    begin_plain(scene, Direction.LOAD)
    assert not scene.cache.any()


def test_what_never_ends_is_given_up(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pagetier.client.calibrate.measure._LONGEST_S", 0.05)
    stream = host_stream("dma", Direction.STORE)
    stream.after(threading.Event())
    with pytest.raises(DeviceError, match="more than 0 s"):
        do(Work(stream, []))
    stream.close(0)


def test_a_failure_on_the_way_is_not_a_speed(scene: Scene) -> None:
    class Broken(HostStream):
        def enqueue(self, copy: Copy) -> None:
            raise DeviceError("gone")

    with pytest.raises(DeviceError, match="gone"):
        list(speeds_of(scene, lambda way, direction: Broken(direction, 1), Direction.STORE, SMALL))


def test_sizes_that_make_no_scene() -> None:
    with pytest.raises(ValueError, match="no pages"):
        Scene("cpu", PAGE_BYTES + 1)
    assert TOTAL_BYTES % PAGE_BYTES == Timing().chunk_bytes % PAGE_BYTES == 0


# --- the command ----------------------------------------------------------------------------------------------

MEASURED = Measured(
    "Some GPU",
    {"store": 50.0, "load": 51.0},
    {
        "store": speeds({"kernel": [45.0] * 11, "staged": [5.0] * 11, "dma": saturating(50, 4 * KIB)}),
        "load": speeds({way: [50.0] * 11 for way in ORDER}),
    },
)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "copy.toml"
    monkeypatch.setenv(COPY_VARIABLE, str(path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    return path


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[CopySettings]:
    """A GPU that is measured at once; what it was told."""
    seen: list[CopySettings] = []

    def measure(index: int, settings: CopySettings) -> Measured:
        seen.append(settings)
        return MEASURED

    monkeypatch.setattr("pagetier.client.calibrate.measure.measure_gpu", measure)
    return seen


def run(*arguments: str) -> Result:
    return CliRunner().invoke(calibrate, arguments)


def test_thresholds_are_printed_and_written(place: Path, told: list[CopySettings]) -> None:
    result = run()
    assert result.exit_code == 0
    assert "store, Some GPU: one plain copy 50.0 GB/s" in result.stdout
    assert "kernel below 2" in result.stdout
    assert "DMA for the rest" in result.stdout
    assert f"written to {place}" in result.stderr
    settings = load_settings(place)
    assert settings.loads == Thresholds(0, 0)
    assert settings.stores == thresholds_of(MEASURED.speeds["store"])
    assert "# measured by pagetier calibrate on Some GPU, 20" in place.read_text()
    assert told == [CopySettings()]


def test_what_stands_in_the_file_is_measured_with_and_stays(place: Path, told: list[CopySettings]) -> None:
    place.write_text('programs = 8  # ours\nload_bandwidth = "20GB/s"\n')
    assert run().exit_code == 0
    assert told[0].programs == load_settings(place).programs == 8
    assert "# ours" in place.read_text()


def test_a_new_file_says_what_the_one_before_it_said(place: Path, told: list[CopySettings], tmp_path: Path) -> None:
    own = tmp_path / ".config/pagetier/copy.toml"
    own.parent.mkdir(parents=True)
    own.write_text("depth = 7\n")
    assert run("--write", str(tmp_path / "deep/new.toml")).exit_code == 0
    assert load_settings(tmp_path / "deep/new.toml").depth == 7
    assert not place.exists()
    assert own.read_text() == "depth = 7\n"


def test_a_dry_run_writes_nothing(place: Path, told: list[CopySettings]) -> None:
    result = run("--dry-run")
    assert result.exit_code == 0
    assert "GB/s" in result.stdout
    assert not place.exists()


def test_json(place: Path, told: list[CopySettings]) -> None:
    told_json = json.loads(run("--json", "--dry-run").stdout)
    assert told_json["device"] == "Some GPU"
    assert told_json["thresholds"]["load"] == {"kernel_below": 0, "staged_below": 0}
    assert told_json["speeds"]["store"][0] == {"way": "kernel", "run_bytes": 2048, "gb_per_s": 45.0}


def failed(*arguments: str) -> str:
    result = run(*arguments)
    assert result.exit_code == 1
    assert not result.stdout
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("pagetier calibrate: ")
    return result.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_one_line_and_nothing_written(place: Path) -> None:
    assert "no CUDA device" in failed()
    assert "no CUDA device" in failed("--device", "3")
    assert not place.exists()


def test_without_torch_one_line_and_nothing_written(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "pagetier.client.calibrate.measure", raising=False)
    monkeypatch.delitem(sys.modules, "pagetier.client.calibrate.scene", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    assert "torch is needed" in failed()
    assert not place.exists()


def test_a_file_that_can_not_be_read_or_written_is_said(
    place: Path, told: list[CopySettings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.write_text("chunks = 1\n")
    assert 'did you mean "chunk"' in failed()
    assert not told
    assert place.read_text() == "chunks = 1\n"
    result = run("--write", str(place / "below.toml"))
    assert result.exit_code == 1
    assert "can not be" in result.stderr
    for name in ("HOME", COPY_VARIABLE):
        monkeypatch.delenv(name)
    assert "no place" in failed()


def test_a_gpu_that_fails_writes_nothing(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(index: int, settings: CopySettings) -> Measured:
        raise DeviceError("cuda:0: out of\nmemory")

    monkeypatch.setattr("pagetier.client.calibrate.measure.measure_gpu", measure)
    assert "cuda:0: out of memory" in failed()
    assert not place.exists()


def test_used_wrongly() -> None:
    assert run("--dry-run", "--write", "x").exit_code == 2
    assert run("--device", "-1").exit_code == 2
    assert run("more").exit_code == 2


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_a_gpu_is_measured() -> None:
    timing = Timing(total_bytes=64 * MIB, rounds=2, runs=(4 * KIB, 64 * KIB, 2 * MIB))
    measured = measure_gpu(0, CopySettings(), timing)
    for direction in ("store", "load"):
        assert len(measured.speeds[direction]) == 9
        assert all(0.1 < speed.gb_per_s < 1000 for speed in measured.speeds[direction])
        thresholds_of(measured.speeds[direction])
