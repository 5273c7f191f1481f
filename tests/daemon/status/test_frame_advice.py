"""When frames are too large for the pages in them, and which frames the log then names."""

from __future__ import annotations

import pytest

from pagetier.daemon.stats.frame_advice import frame_advice, pages_that_fit
from pagetier.shm._core import LEAST_FRAME_BYTES
from pagetier.shm.units import spell_size

KIB, MIB = 1 << 10, 1 << 20
PAGES = 100


def advice(page_bytes: int, frame_bytes: int = MIB, pages: int = PAGES) -> str:
    return frame_advice(pages, pages * page_bytes, pages * taken(page_bytes, frame_bytes))


def taken(page_bytes: int, frame_bytes: int) -> int:
    return -(-page_bytes // frame_bytes) * frame_bytes


@pytest.mark.parametrize(
    ("page_bytes", "better"),
    [
        (64 * KIB, "64KiB"),
        (192 * KIB, "128KiB"),
        (767 * KIB, "256KiB"),
        (61 * 1152 * 16, "256KiB"),
        (MIB + MIB // 4, "512KiB"),
        (100, "4KiB"),
    ],
)
def test_frames_of_which_a_quarter_is_wasted_are_too_large(page_bytes: int, better: str) -> None:
    assert f'arena.frame_size = "{better}" fits better' in advice(page_bytes)


@pytest.mark.parametrize("page_bytes", [768 * KIB, 896 * KIB, MIB, 3 * MIB // 2, 5 * 192 * KIB, 6 * 61 * 1152 * 16])
def test_frames_that_are_filled_to_three_quarters_are_kept(page_bytes: int) -> None:
    assert not advice(page_bytes)


def test_the_advice_is_a_stop_and_a_start_since_a_restart_with_other_frames_is_refused() -> None:
    said = advice(64 * KIB)
    assert said.endswith("stop, then start with it and --fresh, which empties memory and the disk tier")
    assert "restart" not in said


def test_of_few_pages_nothing_is_said() -> None:
    assert advice(64 * KIB, pages=16) and not advice(64 * KIB, pages=15)


@pytest.mark.parametrize("frame_bytes", [MIB, 64 * KIB, LEAST_FRAME_BYTES])
def test_the_named_frames_are_better(frame_bytes: int) -> None:
    for page_bytes in range(1000, 3 * MIB, 9973):
        named = advice(page_bytes, frame_bytes)
        if not named:
            continue
        better = next(one for at in range(12, 31) if f'"{spell_size(one := 1 << at)}"' in named)
        assert better < frame_bytes and taken(page_bytes, better) < taken(page_bytes, frame_bytes), (page_bytes, named)


def test_the_least_frames_have_no_better_ones() -> None:
    assert not advice(100, LEAST_FRAME_BYTES)


@pytest.mark.parametrize(
    ("own", "other", "fit"),
    [((32, 2), (8, 8), 64), ((0, 0), (32, 2), 64), ((0, 0), (0, 0), None), ((2048, 1200), (0, 0), 1200)],
)
def test_an_empty_tier_fits_pages_as_large_as_those_of_the_other(
    own: tuple[int, int], other: tuple[int, int], fit: int | None
) -> None:
    assert pages_that_fit(1024, own, other) == fit
