"""What every store of a fleet must do. A module for each store inherits the tests and has the fixture `options`."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import msgspec
import pytest

from compression_conformance import CompressionConformance
from fleet_pages import OpenedFleet, names_of, opened_fleet, with_key
from pagetier.tiers.base import Outgoing, ReadOutcome
from pagetier.tiers.fleet.objects import HEADER_BYTES
from pagetier.tiers.worker_protocol import FleetOptions
from store_pages import FRAME, OTHER, outgoing, outgoings

SIZES = [1, 127, 128, FRAME - 1, FRAME, FRAME + 1, 3 * FRAME - 7, (2 << 20) + 5, 60 << 20]
# Where each field of the header begins.
FIELDS = {
    "magic": 0,
    "version": 8,
    "codec": 9,
    "key id": 10,
    "header length": 12,
    "size": 16,
    "size, high byte": 23,
    "page key": 24,
    "namespace": 56,
    "checksum": 88,
    "nonce": 104,
    "proof": 116,
    "first byte": 128,
    "middle": 128 + FRAME,
    "last byte": -1,
}

# After damage to one of these, an object looks like one that is right for another fleet or a later version.
KEPT = frozenset({"version", "codec", "key id"})

# A page does not depend on these. With a key it depends on the nonce.
UNUSED_WITHOUT_KEY = frozenset({"nonce", "proof"})

# `make test-fleet` has cryptography.
CODECS = ["plain", "encrypted"] if find_spec("cryptography") else ["plain"]


needs_key = pytest.mark.skipif(len(CODECS) == 1, reason="make test-fleet has cryptography")


def changed(data: bytes, at: int) -> bytes:
    copy = bytearray(data)
    copy[at] ^= 0x40
    return bytes(copy)


class StoreConformance(CompressionConformance):
    """The tests, with plain and with encrypted pages."""

    @pytest.fixture(params=CODECS)
    def opened(self, request: pytest.FixtureRequest, options: FleetOptions, tmp_path: Path) -> Iterator[OpenedFleet]:
        if request.param == "encrypted":
            options = with_key(options, tmp_path)
        with opened_fleet(options) as opened:
            yield opened

    @pytest.fixture
    def is_plain(self, opened: OpenedFleet) -> bool:
        return not opened.options.key_file

    @pytest.mark.parametrize("size", SIZES)
    def test_a_page_returns_with_its_bytes(self, opened: OpenedFleet, size: int) -> None:
        page = outgoing(1, size)
        written = opened.fleet.write([], [page])
        assert (written.stored, written.present, written.disk_bytes) == ((True,), frozenset(), size)
        assert list(opened.fleet.locate(names_of([page]))) == [size]
        assert opened.outcome(page) is ReadOutcome.EXACT

    def test_a_page_that_was_never_written_is_absent(self, opened: OpenedFleet) -> None:
        page = outgoing(2)
        assert list(opened.fleet.locate(names_of([page]))) == [0]
        assert opened.outcome(page) is ReadOutcome.ABSENT
        opened.store.remove(opened.name(page))

    def test_the_first_writer_wins(self, opened: OpenedFleet) -> None:
        opened.store_all(outgoing(3))
        written = opened.fleet.write([], [outgoing(3, version=1), outgoing(4)])
        assert (written.stored, written.present) == ((True, True), frozenset({0}))
        assert opened.outcome(outgoing(3)) is ReadOutcome.EXACT
        assert opened.fleet.state().present == 1

    def test_a_chain_is_located_by_its_pages(self, opened: OpenedFleet) -> None:
        pages = outgoings(range(60), 500)
        opened.store_all(*pages[:23])
        assert list(opened.fleet.locate(names_of(pages))) == [500] * 23 + [0] * 37
        assert list(opened.fleet.locate([])) == []

    def test_a_long_chain_is_located_by_its_pages(self, opened: OpenedFleet) -> None:
        pages = outgoings(range(200), 500)
        opened.store_all(*pages[:123])
        assert list(opened.fleet.locate(names_of(pages))) == [500] * 123 + [0] * 77

    @pytest.mark.parametrize(("count", "there"), [(12, 11), (40, 37), (64, 1), (200, 199)])
    def test_a_page_without_those_before_it_is_located(self, opened: OpenedFleet, count: int, there: int) -> None:
        """Of recurrent state, only the snapshot at the end of a prompt may have been stored."""
        pages = outgoings(range(count), 500)
        opened.store_all(pages[there])
        assert list(opened.fleet.locate(names_of(pages))) == [0] * there + [500] + [0] * (count - there - 1)

    def test_namespaces_and_prefixes_are_apart(self, opened: OpenedFleet) -> None:
        opened.store_all(outgoing(5))
        assert opened.outcome(outgoing(5, space=OTHER)) is ReadOutcome.ABSENT
        with opened_fleet(msgspec.structs.replace(opened.options, prefix=f"{opened.options.prefix}-2")) as other:
            assert other.outcome(outgoing(5)) is ReadOutcome.ABSENT

    @pytest.mark.parametrize("field", FIELDS)
    def test_a_damaged_byte_is_a_miss(self, opened: OpenedFleet, is_plain: bool, field: str) -> None:
        page = outgoing(6)
        opened.store_all(page)
        opened.replace(page, changed(opened.object(page), FIELDS[field]))
        if field in UNUSED_WITHOUT_KEY and (is_plain or field == "proof"):
            assert opened.outcome(page) is ReadOutcome.EXACT, "the page does not depend on it"
        else:
            self.assert_lost(opened, page, kept=field in KEPT)

    def assert_lost(self, opened: OpenedFleet, page: Outgoing, *, kept: bool = False) -> None:
        """Asserts that a damaged page is a miss, and that it is removed and can be stored again, or `kept`."""
        outcome = opened.outcome(page)
        assert outcome is (ReadOutcome.ABSENT if kept else ReadOutcome.DAMAGED)
        if outcome is ReadOutcome.DAMAGED:
            assert opened.fleet.state().damaged == 1
            assert not opened.is_there(page)
            opened.store_all(page)
            assert opened.outcome(page) is ReadOutcome.EXACT
        else:
            assert opened.is_there(page)

    @pytest.mark.parametrize("length", [1, 64, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 1, -1])
    def test_a_truncated_object_is_a_miss(self, opened: OpenedFleet, length: int) -> None:
        page = outgoing(7)
        opened.store_all(page)
        opened.replace(page, opened.object(page)[:length])
        self.assert_lost(opened, page)

    @pytest.mark.parametrize("more", [1, FRAME, 1 << 20])
    def test_a_grown_object_is_a_miss(self, opened: OpenedFleet, is_plain: bool, more: int) -> None:
        page = outgoing(8)
        opened.store_all(page)
        opened.replace(page, opened.object(page) + bytes(more))
        self.assert_lost(opened, page, kept=not is_plain)

    @pytest.mark.parametrize("length", [1, HEADER_BYTES, HEADER_BYTES + 1, 1 << 20])
    def test_an_object_of_another_length_is_replaced_by_the_next_writer(
        self, opened: OpenedFleet, is_plain: bool, length: int
    ) -> None:
        """No question shows an object that is too short, and no host has room for one that is too long."""
        page, other = outgoing(35), outgoing(36)
        opened.store_all(page, other)
        opened.replace(page, opened.object(page)[:length].ljust(length, b"?"))
        written = opened.fleet.write([], [page, other])
        is_kept = not is_plain and length > HEADER_BYTES + page.size
        assert written.present == (frozenset({0, 1}) if is_kept else frozenset({1}))
        assert opened.outcome(page) is (ReadOutcome.ABSENT if is_kept else ReadOutcome.EXACT)
        assert opened.fleet.state().damaged == (not is_kept)

    def test_the_object_of_another_page_is_a_miss(self, opened: OpenedFleet) -> None:
        page, other = outgoing(9), outgoing(10)
        opened.store_all(page, other)
        opened.replace(page, opened.object(other))
        self.assert_lost(opened, page)

    def test_the_same_key_in_another_namespace_is_a_miss(self, opened: OpenedFleet) -> None:
        page, other = outgoing(11), outgoing(11, space=OTHER)
        opened.store_all(page, other)
        opened.replace(page, opened.object(other))
        self.assert_lost(opened, page)

    def test_a_page_of_another_size_is_absent(self, opened: OpenedFleet) -> None:
        opened.store_all(outgoing(12, 100))
        assert opened.outcome(outgoing(12, 200)) is ReadOutcome.ABSENT
        assert opened.is_there(outgoing(12))

    def test_an_object_of_a_later_version_is_kept(self, opened: OpenedFleet) -> None:
        page = outgoing(13)
        opened.store_all(page)
        data = opened.object(page)
        opened.replace(page, data[:8] + b"\2" + data[9:])
        assert opened.outcome(page) is ReadOutcome.ABSENT
        assert opened.is_there(page)

    def test_ten_damaged_objects_a_minute_are_removed(self, opened: OpenedFleet) -> None:
        pages = outgoings(range(14, 26), 50)
        opened.store_all(*pages)
        for page in pages:
            opened.replace(page, changed(opened.object(page), -1))
        assert {opened.outcome(page) for page in pages} == {ReadOutcome.DAMAGED}
        assert sum(map(opened.is_there, pages)) == 2
        state = opened.fleet.state()
        assert (state.damaged, state.foreign) == (12, 0)

    @needs_key
    def test_the_object_of_another_key_is_foreign(
        self, opened: OpenedFleet, options: FleetOptions, tmp_path: Path
    ) -> None:
        page = outgoing(30)
        opened.store_all(page)
        with opened_fleet(with_key(options, tmp_path, b"other" + b"k" * 27)) as other:
            assert other.outcome(page) is ReadOutcome.ABSENT
            assert other.fleet.state().foreign == 1
            assert "remote.key_file" in other.fleet.state().note
        assert opened.outcome(page) is ReadOutcome.EXACT

    @needs_key
    def test_damage_that_hides_the_key_is_kept(self, options: FleetOptions, tmp_path: Path) -> None:
        page = outgoing(33)
        with opened_fleet(with_key(options, tmp_path)) as opened:
            opened.store_all(page)
            opened.replace(page, changed(changed(opened.object(page), FIELDS["proof"]), -1))
            assert opened.outcome(page) is ReadOutcome.ABSENT and opened.is_there(page)
            assert (opened.fleet.state().damaged, opened.fleet.state().foreign) == (0, 1)

    @needs_key
    def test_a_key_with_the_same_id_removes_nothing(
        self, options: FleetOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        page = outgoing(34)
        with opened_fleet(with_key(options, tmp_path)) as opened:
            opened.store_all(page)
            with opened_fleet(with_key(options, tmp_path, b"other" + b"k" * 27)) as other:
                monkeypatch.setattr(other.fleet._judge._codec, "key_id", opened.fleet._judge._codec.key_id)
                assert other.outcome(page) is ReadOutcome.ABSENT
            assert opened.outcome(page) is ReadOutcome.EXACT

    @needs_key
    def test_a_reader_without_the_key_removes_nothing(self, opened: OpenedFleet, options: FleetOptions) -> None:
        page = outgoing(31)
        opened.store_all(page)
        with opened_fleet(options) as other:
            assert other.outcome(page) is (ReadOutcome.ABSENT if opened.options.key_file else ReadOutcome.EXACT)
            assert other.fleet.state().foreign == bool(opened.options.key_file)
        assert opened.outcome(page) is ReadOutcome.EXACT

    def test_the_header_is_as_documented(self, opened: OpenedFleet, is_plain: bool) -> None:
        page = outgoing(32, 300)
        opened.store_all(page)
        data = opened.object(page)
        assert data[:9] == b"ptfleet\0\1"
        assert data[9] == (0 if is_plain else 1)
        assert struct.unpack_from("<IQ", data, 12) == (128, 300)
        assert data[24:88] == page.key + page.space.digest
        assert (data[104:128] == bytes(24)) == is_plain
        assert (data[128:] == bytes(page.frames[0][:300])) == is_plain
