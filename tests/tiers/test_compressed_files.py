"""The files store with compressed pages: room, damage, direct access, and processors without fast instructions."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from disk_stores import open_kind
from file_changes import flip_bit
from kv_pages import kv_page
from numbered_pages import key_of
from pagetier.shm._core import compress, compresses_fast
from pagetier.tiers.base import NO_ROOM, Incoming, Outgoing, ReadOutcome, ReadResult
from pagetier.tiers.capacity import frames_under, slot_bytes_of
from pagetier.tiers.disk.file_format import Header
from pagetier.tiers.disk.store import DiskStore
from pagetier.tiers.frame_files import compressed_environment, files_environment
from pagetier.tiers.frame_files.compressed_environment import CompressedEnvironment
from store_pages import SPACE, aligned, bytes_in

FRAME = 1 << 20
SLOT = 1 << 16
CAP = 64 << 20
SIZE = 2 * FRAME
SIZES = [SIZE, FRAME, SLOT, 512, 1, SIZE - 512, FRAME + SLOT, 3 * FRAME // 2 + 7]

pytestmark = pytest.mark.skipif(not compresses_fast(), reason="this processor has no AVX2")


@pytest.fixture
def tier(tmp_path: Path) -> Iterator[DiskStore]:
    with closing(opened(tmp_path)) as tier:
        yield tier


def opened(folder: Path, cap: int = CAP) -> DiskStore:
    return open_kind("compressed", folder / "tier", cap, FRAME, 1)


def environment_of(tier: DiskStore) -> CompressedEnvironment:
    (environment,) = tier._environments
    assert isinstance(environment, CompressedEnvironment)
    return environment


def framed(nbytes: int, content: bytes = b"") -> list[memoryview]:
    whole = -(-nbytes // FRAME) * FRAME
    memory = aligned(whole, content.ljust(whole, b"\xee") if content else b"")
    return [memory[at : at + FRAME] for at in range(0, whole, FRAME)]


def page_of(number: int, size: int = SIZE) -> Outgoing:
    return Outgoing(key_of(number), SPACE, size, number, framed(size, kv_page("bf16", size, number)))


def noise_of(number: int, size: int = SIZE) -> Outgoing:
    return Outgoing(key_of(number), SPACE, size, number, framed(size, Random(number).randbytes(size)))


def read(tier: DiskStore, page: Outgoing) -> ReadResult:
    """Reads a page. Asserts that its bytes are right if they are called exact."""
    frames = framed(page.size)
    result = tier.read(Incoming(page.key, page.size, frames))
    if result.outcome is ReadOutcome.EXACT:
        assert b"".join(frames)[: page.size] == b"".join(page.frames)[: page.size]
    return result


def header_of(tier: DiskStore, page: Outgoing) -> Header:
    environment = environment_of(tier)
    with environment.reading() as txn:
        return environment.unpack(page.key, txn.get(page.key, memoryview(b""), db=environment.pages))


def test_a_slot_is_a_sixteenth_of_a_frame_but_no_less_than_16_kib() -> None:
    slots = {frame: slot_bytes_of(frame) for frame in (4096, 1 << 14, 1 << 16, 1 << 20, 1 << 24)}
    assert slots == {4096: 4096, 1 << 14: 1 << 14, 1 << 16: 1 << 14, 1 << 20: 1 << 16, 1 << 24: 1 << 20}


@pytest.mark.parametrize("size", SIZES)
def test_pages_of_any_size_come_back_exactly(tier: DiskStore, size: int) -> None:
    pages = [page_of(1, size), noise_of(2, size)]
    written = tier.write([], pages)
    assert all(written.stored)
    assert [read(tier, page).outcome for page in pages] == [ReadOutcome.EXACT] * 2
    whole = -(-size // SLOT)
    assert written.slots[1] == whole
    assert written.slots[0] == -(-header_of(tier, pages[0]).stored_bytes // SLOT) <= whole


def test_a_page_takes_the_slots_of_its_code_and_the_record_says_so(tier: DiskStore) -> None:
    page = page_of(1)
    assert tier.write([], [page]).slots == (23,)
    header = header_of(tier, page)
    assert header.coded == compress(page.frames, bytearray(SIZE))
    assert sum(extent.frames for extent in header.extents) == 23
    assert [row.slots for part in tier.contents() for row in part] == [23]
    assert tier.state().used_frames == 2, "in frames of the arena"


def test_noise_is_stored_as_it_is(tier: DiskStore) -> None:
    page = noise_of(1)
    assert tier.write([], [page]).slots == (32,)
    assert header_of(tier, page).coded == 0
    assert [row.slots for part in tier.contents() for row in part] == [0]


def test_a_third_more_pages_fit_under_the_cap(tier: DiskStore, tmp_path: Path) -> None:
    pages = [page_of(number) for number in range(60)]
    stored = [page for page in pages if tier.write([], [page]).stored[0]]
    plain = frames_under("files", CAP, 1, FRAME) // 2
    assert 1.3 * plain <= len(stored) <= 1.45 * plain
    assert bytes_in(tmp_path) <= CAP
    assert tier.write([], [page_of(99)]).reasons == (NO_ROOM,)
    assert {read(tier, page).outcome for page in stored} == {ReadOutcome.EXACT}


def test_slots_of_a_replaced_page_are_free_again(tier: DiskStore) -> None:
    for number in range(40):
        page = page_of(1) if number % 2 else noise_of(1)
        assert tier.write([], [page]).stored == (True,)
    assert environment_of(tier).used == 23
    assert tier.write([key_of(1)], []).undropped == ""
    assert environment_of(tier).used == 0


def test_a_slot_is_not_reused_while_its_compressed_page_is_read(
    tier: DiskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page is dropped, and others fill the tier, before its first byte is read."""
    page, others = page_of(1), [page_of(number, FRAME) for number in range(2, 90)]
    tier.write([], [page])
    preadv, late = os.preadv, list[bool]()

    def read_late(*arguments: Any) -> int:
        monkeypatch.setattr(os, "preadv", preadv)
        assert tier.write([page.key], []).undropped == ""
        late.extend(tier.write([], others).stored)
        return preadv(*arguments)

    monkeypatch.setattr(os, "preadv", read_late)
    monkeypatch.setattr(files_environment, "READERS_S", 0.01)
    assert read(tier, page).outcome is ReadOutcome.EXACT
    assert 0 < sum(late) < len(others), "they fill the tier"
    stored = [other for other, there in zip(others, late, strict=True) if there]
    assert {read(tier, other).outcome for other in stored} == {ReadOutcome.EXACT}
    assert tier.write([], [page]).stored == (True,), "its slots are free now"


def test_pages_in_many_extents_come_back(tier: DiskStore) -> None:
    pages = [page_of(number, SIZE if number % 2 else FRAME + SLOT) for number in range(40)]
    stored = [page for page in pages if tier.write([], [page]).stored[0]]
    assert tier.write([page.key for page in stored[::2]], []).undropped == ""
    more = [page for page in (page_of(100 + number) for number in range(40)) if tier.write([], [page]).stored[0]]
    assert any(len(header_of(tier, page).extents) > 1 for page in more)
    assert {read(tier, page).outcome for page in [*stored[1::2], *more]} == {ReadOutcome.EXACT}


def test_a_tier_is_found_as_it_was_left_and_keeps_what_fits_a_smaller_cap(tmp_path: Path) -> None:
    pages = [page_of(number) for number in range(20)]
    with closing(opened(tmp_path)) as tier:
        assert all(tier.write([], pages).stored)
    with closing(opened(tmp_path)) as tier:
        assert tier.state().opened == "as it was left"
        assert {read(tier, page).outcome for page in pages} == {ReadOutcome.EXACT}
    with closing(opened(tmp_path, CAP // 2)) as tier:
        assert environment_of(tier).used <= tier.capacity
        left = [page for page in pages if read(tier, page).outcome is ReadOutcome.EXACT]
        assert left == pages[-len(left) :], "the coldest leave"
        assert len(left) > 1.25 * (frames_under("files", CAP // 2, 1, FRAME) // 2)
        assert bytes_in(tmp_path) <= CAP // 2


@pytest.mark.parametrize("at", [0, 1, 4, 300, 40_000, SLOT, 20 * SLOT + 77])
def test_damaged_code_is_a_miss_and_leaves_the_tier(tmp_path: Path, at: int) -> None:
    page = page_of(1)
    with closing(opened(tmp_path)) as tier:
        tier.write([], [page])
        first = header_of(tier, page).extents[0].page
    flip_bit(tmp_path / "tier" / "0" / "frames.0", first * SLOT + at, 5)
    with closing(opened(tmp_path)) as tier:
        assert read(tier, page).outcome is ReadOutcome.DAMAGED
        assert read(tier, page).outcome is ReadOutcome.ABSENT
        assert environment_of(tier).used == 0


def test_damage_behind_the_code_harms_nothing(tmp_path: Path) -> None:
    page = page_of(1)
    with closing(opened(tmp_path)) as tier:
        tier.write([], [page])
        header = header_of(tier, page)
    flip_bit(tmp_path / "tier" / "0" / "frames.0", header.extents[0].page * SLOT + header.coded, 5)
    with closing(opened(tmp_path)) as tier:
        assert read(tier, page).outcome is ReadOutcome.EXACT


@pytest.mark.parametrize("change", [lambda coded: coded - 1, lambda coded: coded + 1, lambda _: 1, lambda _: 1 << 63])
def test_a_record_with_another_length_is_a_miss(tier: DiskStore, change: Callable[[int], int]) -> None:
    page = page_of(1)
    tier.write([], [page])
    header = header_of(tier, page)
    environment = environment_of(tier)
    with environment.changing() as txn:
        environment.put(txn, page.key, msgspec.structs.replace(header, coded=change(header.coded)))
    assert read(tier, page).outcome is ReadOutcome.DAMAGED


def test_no_bytes_of_other_pages_follow_the_code(tier: DiskStore, tmp_path: Path) -> None:
    """The memory for code is used again and again."""
    for number in range(3):
        tier.write([], [noise_of(number), page_of(10 + number)])
        header = header_of(tier, page_of(10 + number))
        (extent,) = header.extents
        data = (tmp_path / "tier" / "0" / "frames.0").read_bytes()[extent.page * SLOT : (extent.page + 23) * SLOT]
        assert not any(data[header.coded :])


def test_without_fast_instructions_pages_are_read_and_stored_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(opened(tmp_path)) as tier:
        tier.write([], [page_of(1)])
        assert "AVX2" not in tier.state().note + caplog.text
    monkeypatch.setattr(compressed_environment, "compresses_fast", lambda: False)
    with closing(opened(tmp_path)) as tier:
        assert "pages are not compressed: this processor has no AVX2" in tier.state().note
        assert f"{tmp_path / 'tier'}: pages are not compressed" in caplog.text
        assert tier.write([], [page_of(2)]).slots == (32,)
        assert {read(tier, page_of(number)).outcome for number in (1, 2)} == {ReadOutcome.EXACT}
