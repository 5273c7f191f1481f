"""What every store of a fleet must do with compressed pages; StoreConformance inherits the tests."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from earlier_fleet_host import Judgement, judged, located_size
from fleet_pages import OpenedFleet, names_of, opened_fleet
from kv_pages import kv_page
from pagetier.tiers.base import Outgoing, ReadOutcome
from pagetier.tiers.fleet import open_fleet
from pagetier.tiers.fleet.objects import COMPRESSED, HEADER_BYTES
from pagetier.tiers.fleet.open_fleet import why_uncompressed
from pagetier.tiers.fleet.page_packer import PagePacker
from store_pages import FRAME, aligned, outgoing

SIZE = 32 * FRAME
# Where each class of bytes of a compressed object begins.
BYTES = {
    "magic": 0,
    "version": 8,
    "codec": 9,
    "key id": 10,
    "header length": 12,
    "size": 16,
    "page key": 24,
    "namespace": 56,
    "checksum": 88,
    "nonce": 104,
    "proof": 116,
    "mode of a block": 128,
    "length of a block": 129,
    "base": 132,
    "low byte": 300,
    "code": 33_400,
    "escape": 45_700,
    "head of the second block": -45_000,
    "rounding": -1,
}
KEPT = frozenset({"version", "codec", "key id"})


def kv_outgoing(number: int, size: int = SIZE) -> Outgoing:
    """Returns a page of real keys and values."""
    whole = aligned(size, kv_page("bf16", size, number))
    frames = [whole[at : at + FRAME] for at in range(0, size, FRAME)]
    return msgspec.structs.replace(outgoing(number), size=size, frames=frames)


def changed(data: bytes, at: int, mask: int = 0x40) -> bytes:
    copy = bytearray(data)
    copy[at] ^= mask
    return bytes(copy)


class CompressionConformance:
    """The tests, with plain and with encrypted pages. A store that compresses no plain pages has them as before."""

    @pytest.fixture(autouse=True)
    def slow_store(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Makes the store slower than the compression, whatever the rates of this machine are."""
        monkeypatch.setattr(PagePacker, "is_worthwhile", True)

    @pytest.fixture
    def compresses(self, opened: OpenedFleet) -> bool:
        return not why_uncompressed(opened.options)

    @pytest.fixture
    def compressed(self, opened: OpenedFleet, monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenedFleet]:
        """Returns a fleet that compresses, also where that is for later versions: all hosts are of this one."""
        monkeypatch.setattr(open_fleet, "why_uncompressed", lambda options: "")
        with opened_fleet(opened.options) as compressed:
            yield compressed

    @pytest.mark.parametrize("size", [FRAME, 8 * FRAME, SIZE, SIZE + FRAME, 3 << 20, SIZE + 512, SIZE - 1])
    def test_real_keys_and_values_take_less_and_come_back(
        self, opened: OpenedFleet, compresses: bool, size: int
    ) -> None:
        page = kv_outgoing(60, size)
        written, stored = opened.fleet.write([], [page]), opened.length(page) - HEADER_BYTES
        assert written.stored == (True,) and written.disk_bytes == stored
        assert list(opened.fleet.locate(names_of([page]))) == [size]
        assert opened.outcome(page) is ReadOutcome.EXACT
        if compresses and size % FRAME == 0 and size > FRAME:
            assert stored < 0.9 * size and (size < 1 << 20 or size / stored > 1.39)
        else:
            assert stored == size

    def test_pages_that_cannot_become_shorter_have_their_size(self, opened: OpenedFleet) -> None:
        page = outgoing(61, SIZE)
        opened.store_all(page)
        assert opened.length(page) == HEADER_BYTES + SIZE
        assert opened.object(page)[9] & COMPRESSED == 0

    def test_hosts_with_and_without_compression_share_pages(self, opened: OpenedFleet) -> None:
        one, two = kv_outgoing(62), kv_outgoing(63)
        opened.store_all(one)
        with opened_fleet(msgspec.structs.replace(opened.options, compress="off")) as other:
            other.store_all(one, two)
            assert other.fleet.state().present == 1
            assert other.length(two) == HEADER_BYTES + SIZE
            assert list(other.fleet.locate(names_of([one, two]))) == [SIZE, SIZE]
            assert [other.outcome(page) for page in (one, two)] == [ReadOutcome.EXACT] * 2
        assert [opened.outcome(page) for page in (one, two)] == [ReadOutcome.EXACT] * 2

    def test_an_earlier_host_leaves_what_this_one_writes_alone(self, opened: OpenedFleet, compresses: bool) -> None:
        """With a key also if the store takes the length of one page for that of another."""
        pages, codec = [kv_outgoing(number, 1 << 20) for number in range(71, 77)], opened.fleet._judge._codec
        opened.store_all(*pages)
        lengths = [opened.length(page) for page in pages]
        assert compresses == (max(lengths) < 1 << 20)
        for page, length in zip(pages, lengths, strict=True):
            located = {located_size(any_length) for any_length in (lengths if codec.key_id else [length])}
            for size in {*located, page.size}:  # as it locates the page, and as it has the page itself
                expected = Judgement.FOREIGN if compresses else Judgement.READ
                assert judged(opened.object(page), size, codec.codec, codec.key_id) is expected

    def test_a_compressed_page_that_is_there_is_not_written_again(self, compressed: OpenedFleet) -> None:
        compressed.store_all(kv_outgoing(64))
        before = compressed.object(kv_outgoing(64))
        written = compressed.fleet.write([], [kv_outgoing(64)])
        assert (written.present, written.disk_bytes) == (frozenset({0}), 0)
        assert compressed.object(kv_outgoing(64)) == before

    @pytest.mark.parametrize("name", BYTES)
    def test_a_damaged_byte_of_a_compressed_page_is_a_miss(self, compressed: OpenedFleet, name: str) -> None:
        page = kv_outgoing(65)
        compressed.store_all(page)
        data = compressed.object(page)
        compressed.replace(page, changed(data, BYTES[name]))
        unused = name == "proof" or (name == "nonce" and not compressed.options.key_file)
        outcome = ReadOutcome.ABSENT if name in KEPT else ReadOutcome.EXACT if unused else ReadOutcome.DAMAGED
        assert compressed.outcome(page) is outcome
        assert compressed.is_there(page) == (outcome is not ReadOutcome.DAMAGED)

    @pytest.mark.parametrize("length", [HEADER_BYTES, HEADER_BYTES + 20, 1000, FRAME, -FRAME, -(FRAME - 2), -2, -1])
    def test_a_truncated_compressed_page_is_a_miss(self, compressed: OpenedFleet, length: int) -> None:
        page = kv_outgoing(66)
        compressed.store_all(page)
        compressed.replace(page, compressed.object(page)[:length])
        assert compressed.outcome(page) is ReadOutcome.DAMAGED
        compressed.store_all(page)
        assert compressed.outcome(page) is ReadOutcome.EXACT

    def test_a_torn_compressed_page_is_replaced_by_the_next_writer(self, compressed: OpenedFleet) -> None:
        page = kv_outgoing(67)
        compressed.store_all(page)
        compressed.replace(page, compressed.object(page)[:-1000])
        assert compressed.fleet.write([], [page]).present == frozenset()
        assert compressed.outcome(page) is ReadOutcome.EXACT

    def test_the_bit_of_compression_is_verified(self, compressed: OpenedFleet) -> None:
        pages = [kv_outgoing(68), outgoing(69, SIZE)]
        compressed.store_all(*pages)
        for page in pages:
            compressed.replace(page, changed(compressed.object(page), BYTES["codec"], COMPRESSED))
            assert compressed.outcome(page) is ReadOutcome.DAMAGED

    def test_zeros_after_a_compressed_page_are_not_hidden(self, compressed: OpenedFleet) -> None:
        """An object that another program made longer, to the length of a page of another size, is no page."""
        page = kv_outgoing(70)
        compressed.store_all(page)
        compressed.replace(page, compressed.object(page) + bytes(2 * FRAME))
        assert compressed.outcome(page) is not ReadOutcome.EXACT
