"""When pages are compressed for a fleet, the lengths of their objects, and hosts that cannot read them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compression_conformance import kv_outgoing
from earlier_fleet_host import Judgement, judged
from faulty_store import DictStore, FaultyStore
from fleet_pages import OpenedFleet, names_of, opened_fleet
from pagetier.tiers.base import PageName, ReadOutcome
from pagetier.tiers.fleet import open_fleet as opening
from pagetier.tiers.fleet.object_lengths import PageSizes, compressed_length, most_bytes, page_size
from pagetier.tiers.fleet.objects import HEADER_BYTES
from pagetier.tiers.fleet.open_fleet import why_uncompressed
from pagetier.tiers.fleet.page_codecs import PlainCodec
from pagetier.tiers.fleet.page_packer import PagePacker
from pagetier.tiers.worker_protocol import FleetOptions
from store_pages import FRAME, OTHER, SPACE, outgoing
from virtual_clock import VirtualClock

MIB = 1 << 20
NAME = PageName(b"s" * 32, b"k" * 32)
sizes_of_pages = st.integers(4, 1 << 14).map(lambda units: units * FRAME)


@given(st.integers(1, 1 << 26))
def test_objects_that_are_not_compressed_say_their_sizes_as_before(half: int) -> None:
    assert page_size(HEADER_BYTES + 2 * half) == 2 * half


@given(sizes_of_pages, st.floats(0.69, 0.95))
def test_the_length_of_a_compressed_object_says_the_size_of_its_page(size: int, share: float) -> None:
    nbytes = int(size * share)
    length = compressed_length(size, nbytes)
    if length:
        assert page_size(length) == size
        assert HEADER_BYTES + nbytes <= length < HEADER_BYTES + size
        assert length - HEADER_BYTES - nbytes < 2 * max(FRAME, size // 1024)
    else:
        is_large = size > 16 * MIB  # such a page has no length if it is no multiple of a unit, or would end near 2^25
        assert size < 16 * FRAME or is_large or nbytes > most_bytes(size) - 2 * FRAME


@pytest.mark.parametrize("size", [17 * MIB, 24 * MIB, 32 * MIB, 64 * MIB])
@pytest.mark.parametrize("percent", [70, 75, 80, 85])
def test_large_pages_of_usual_sizes_have_a_length(size: int, percent: int) -> None:
    assert page_size(compressed_length(size, size * percent // 100)) == size


@given(sizes_of_pages, st.lists(st.floats(0.69, 0.94), min_size=2, max_size=2))
def test_lengths_tell_what_differs_by_4_kib_only(size: int, shares: list[float]) -> None:
    lengths = {compressed_length(size, int(size * share)) for share in shares} - {0}
    assert len(lengths) < 2 or max(lengths) - min(lengths) >= FRAME - 2


def test_pages_with_the_length_of_compressed_ones_are_known_after_the_first() -> None:
    size = 2 * MIB + 5
    assert page_size(HEADER_BYTES + size) != size, "the length of a compressed page"
    sizes = PageSizes()
    sizes.note_uncompressed(SPACE.digest, 2 * MIB)
    assert list(sizes.of([HEADER_BYTES + size], [SPACE.digest])) != [size]
    sizes.note_uncompressed(SPACE.digest, size)
    assert list(sizes.of([HEADER_BYTES + size] * 2 + [0], [SPACE.digest, OTHER.digest, SPACE.digest])) == [
        size,
        page_size(HEADER_BYTES + size),
        0,
    ]


@pytest.fixture
def folder(tmp_path: Path) -> FleetOptions:
    (tmp_path / "fleet").mkdir()
    return FleetOptions(url=f"file://{tmp_path}/fleet", buffers=16 * MIB, timeout_s=20)


def test_the_first_read_of_such_pages_of_another_host_is_a_miss_and_no_other(folder: FleetOptions) -> None:
    page = outgoing(1, 2 * MIB + 5)
    with opened_fleet(folder) as writer, opened_fleet(folder) as reader:
        writer.store_all(page)
        guess = outgoing(1, reader.fleet.locate(names_of([page]))[0])
        assert guess.size != page.size and reader.outcome(guess) is ReadOutcome.ABSENT
        assert list(reader.fleet.locate(names_of([page]))) == [page.size]
        assert reader.outcome(page) is ReadOutcome.EXACT
        assert reader.fleet.state().damaged == 0


@pytest.mark.parametrize("url", ["s3://pages/kv", "mooncake://master:1", "python://module:Store"])
def test_stores_that_guess_lengths_get_compressed_pages_only_with_a_key(url: str) -> None:
    """An earlier host without a key removes an object that is longer than the store has said."""
    assert judged(bytes(200), 50, 0, 0) is Judgement.REMOVED and judged(bytes(200), 50, 1, 7) is Judgement.FOREIGN
    assert "set remote.key_file" in why_uncompressed(FleetOptions(url=url, trusted=True))
    assert not why_uncompressed(FleetOptions(url=url, key_file="/key"))
    assert not why_uncompressed(FleetOptions(url="file:///mnt/pages"))


def test_a_processor_without_vector_instructions_reads_and_does_not_compress(
    folder: FleetOptions, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = kv_outgoing(1, MIB), kv_outgoing(2, MIB)
    with opened_fleet(folder) as opened:
        opened.store_all(one)
    monkeypatch.setattr(opening, "compresses_fast", lambda: False)
    caplog.set_level("INFO", "pagetier.tier")
    with opened_fleet(folder) as opened:
        opened.store_all(two)
        assert opened.length(one) < opened.length(two) == HEADER_BYTES + MIB
        assert [opened.outcome(page) for page in (one, two)] == [ReadOutcome.EXACT] * 2
    assert "pages are not compressed for the fleet: this processor has no AVX2" in caplog.text


class CodecInTime(PlainCodec):
    """A codec that takes virtual time to compress."""

    def __init__(self, clock: VirtualClock, rate: float) -> None:
        self.clock, self.rate, self.compressed = clock, rate, 0

    def pack_compressed(self, page: PageName, size: int, frames: Sequence[memoryview], out: memoryview) -> int:
        self.clock.passes(size / self.rate)
        self.compressed += 1
        return super().pack_compressed(page, size, frames, out)


class PackedPages:
    """Packs pages of real keys and values, and puts them into a store of some rate, in virtual time."""

    def __init__(self, clock: VirtualClock, coding: float) -> None:
        self.clock, self.codec = clock, CodecInTime(clock, coding)
        self.packer = PagePacker(self.codec, "auto")
        self.page, self.out = kv_outgoing(1, MIB), memoryview(bytearray(2 * MIB))

    def _put(self, seconds: float) -> bool:
        self.clock.passes(seconds)
        return True

    def share(self, pages: int, store: float) -> float:
        """Returns the share of the next pages that were compressed."""
        before = self.codec.compressed
        for _ in range(pages):
            length = self.packer.pack(NAME, MIB, self.page.frames, self.out)
            self.packer.put(partial(self._put, length / store), length)
        return (self.codec.compressed - before) / pages


@pytest.mark.parametrize(("store", "share"), [(100e6, 1.0), (1.9e9, 1.0), (2.1e9, 1 / 64), (20e9, 1 / 64)])
def test_pages_are_compressed_while_the_store_is_slower(
    virtual_clock: VirtualClock, store: float, share: float
) -> None:
    packed = PackedPages(virtual_clock, 2e9)
    packed.share(64, store)
    assert packed.share(640, store) == share


def test_a_store_that_becomes_slower_gets_compressed_pages_again(virtual_clock: VirtualClock) -> None:
    packed = PackedPages(virtual_clock, 2e9)
    packed.share(6400, 10e9)
    assert packed.share(640, 10e9) == 1 / 64
    packed.share(640, 100e6)
    assert packed.share(640, 100e6) == 1.0
    packed.codec.rate = 50e6  # a host without a core to spare
    packed.share(640, 100e6)
    assert packed.share(640, 100e6) == 1 / 64


def test_a_store_that_fails_has_no_rate(virtual_clock: VirtualClock) -> None:
    packer = PackedPages(virtual_clock, 2e9).packer

    def failing() -> bool:
        virtual_clock.passes(1.0)
        raise ConnectionError

    for _ in range(3):
        with pytest.raises(ConnectionError):
            packer.put(failing, MIB)
        assert not packer.put(lambda: False, MIB)
    assert packer._store.rate == 0.0 and packer.is_worthwhile


@pytest.fixture
def timed(virtual_clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenedFleet]:
    """Returns a fleet whose puts take virtual time: 0.01 s each."""
    DictStore.objects.clear()
    virtual_clock.is_stuck = lambda: False
    FaultyStore.before = [lambda call: virtual_clock.passes(0.01) if call == "put" else None]
    monkeypatch.setattr(opening, "why_uncompressed", lambda options: "")
    with opened_fleet(FleetOptions(url="python://faulty_store:FaultyStore", buffers=16 * MIB)) as opened:
        yield opened
    FaultyStore.before = []


def test_puts_of_the_fleet_are_what_is_measured(timed: OpenedFleet) -> None:
    pages = [kv_outgoing(number, MIB) for number in range(8)]
    for page in pages:
        timed.store_all(page)
    stored = sum(map(timed.length, pages))
    assert stored < 8 * MIB / 1.39
    assert timed.fleet._writer._packer._store.rate == pytest.approx(stored / 0.08, rel=0.01)


def test_off_is_off(folder: FleetOptions) -> None:
    with opened_fleet(msgspec.structs.replace(folder, compress="off")) as opened:
        opened.store_all(kv_outgoing(1, MIB))
        assert opened.length(kv_outgoing(1, MIB)) == HEADER_BYTES + MIB
