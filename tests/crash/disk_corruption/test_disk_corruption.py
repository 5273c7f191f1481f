"""Tests damage to any page of a tier's file: each page is exact or a miss, and in the end the tier works again."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from disk_corruption.corruptions import Damage, Harm, IntactFile
from disk_corruption.file_anatomy import PAGE, PARTS, Anatomy, Part
from disk_stores import StoreKind
from file_changes import flip_bit, write_at
from pagetier.shm.protocol import BUILD
from pagetier.tiers.base import ReadOutcome, TierError
from pagetier.tiers.disk import file_format
from pagetier.tiers.lmdb.count import miscounted
from power_loss.trials import Tally, Wanted, results
from power_loss.workload import Terms
from seeded_random import chance
from store_pages import FRAME, keys_in, outcome_of, outcomes, outgoing, outgoings, small_tier

ALL = "all" in (os.environ.get("POWER"), os.environ.get("SWEEP"))
DAMAGES = len(Harm) * len(PARTS["lmdb"]) * (50 if ALL else 1)
PAGES = outgoings(range(120))
NODE_FLAGS_BEFORE = 4  # the key of a node
F_SUBDATA = 2
PAGE_FLAGS_AT = 10
P_OVERFLOW = 4
FLAGS_AT = 16 + 24 + 4  # after the page's header, the meta's and a size
each_store = pytest.mark.parametrize("store", PARTS)
LAST_PAGE_AT = 16 + 24 + 2 * 48  # after the page's header, the meta's and two trees


def tried(count: int, **more: Any) -> Tally:
    """Runs this many damages and returns the results."""
    wanted = Wanted(**{"seed": int(chance().integers(1 << 31)), "count": count, **more})
    return results("disk_corruption.runs", wanted)


@each_store
def test_a_damaged_tier_serves_exact_bytes_or_misses_and_still_works(
    store: StoreKind, record_property: Callable[[str, object], None]
) -> None:
    tally = tried(DAMAGES, terms=Terms(cap=0, store=store))
    assert tally.violations == []
    assert sum(tally.counts["parts"].values()) == DAMAGES
    assert tally.counts["parts"].keys() == set(PARTS[store])
    assert {"as it was left", "proven", "rebuilt"} <= tally.counts["found"].keys()
    assert tally.counts["pages"]["damaged"] > 0
    record_property("counted", {f"{store}, {what}": number for what, number in tally.counts["chosen"].items()})


def test_a_transaction_that_fails_from_unreported_damage_ends_the_worker() -> None:
    """Found once: the record of a database was noise, and LMDB reported for ever only that the transaction is bad."""
    assert tried(56, seed=1957511788).violations == []


@each_store
def test_a_tier_that_verifies_no_checksum_is_found(store: StoreKind) -> None:
    assert tried(400, terms=Terms(cap=0, store=store), mistake="verifies no checksum", violations=1, seed=1).violations


def left(folder: Path) -> Path:
    """Creates a closed tier that holds PAGES, in one environment, and returns its file."""
    tier = small_tier(folder, environments=1)
    assert all(tier.write([], PAGES).stored)
    tier.close()
    return folder / "0" / "data.mdb"


def test_all_kinds_of_pages_are_known(tmp_path: Path) -> None:
    tier = small_tier(tmp_path, environments=1)
    for first in range(0, 120, 10):
        tier.write([page.key for page in PAGES[first - 10 : first - 5]], PAGES[first : first + 10])
    tier.close()
    data = (tmp_path / "0" / "data.mdb").read_bytes()
    anatomy = Anatomy(data)
    kinds = {part: len(anatomy.of(part)) for part in PARTS["lmdb"]}
    assert all(kinds.values()), kinds
    held = 120 - 55
    assert kinds[Part.VALUE_HEAD] == kinds[Part.VALUE] == 3 * held
    patient = IntactFile(data, data[: 10 * PAGE], Anatomy(data))
    for harm in Harm:
        assert len(patient.harmed(Damage(0, Part.VALUE, harm), Random(1))) == len(data)


def spoil_headers(file: Path, spoil: Callable[[file_format.Header], file_format.Header]) -> int:
    """Changes all headers in the file, also older versions, and returns how many were changed."""
    data, changed = file.read_bytes(), 0
    for page in PAGES[:3]:
        packed = page.size.to_bytes(8, "little") + page.stamp.to_bytes(8, "little")
        at = data.find(packed)
        while at >= 0:
            end = at - 8 + file_format.HEADER_BYTES + file_format.EXTENT_BYTES
            header = file_format.unpack_header(data[at - 8 : end])
            data = data[: at - 8] + file_format.pack_header(spoil(header)) + data[end:]
            changed += 1
            at = data.find(packed, at + 1)
    file.write_bytes(data)
    return changed


@pytest.mark.parametrize("size", [0, 1 << 40, (1 << 64) - 1])
def test_a_page_with_an_invalid_size_is_not_reported(tmp_path: Path, size: int) -> None:
    """A daemon rejects a worker that reports such a page and starts another, for ever, as that one reports it, too."""
    assert spoil_headers(left(tmp_path), lambda header: msgspec.structs.replace(header, size=size)) >= 3
    tier = small_tier(tmp_path, environments=1)
    assert keys_in(tier) == {page.key for page in PAGES[3:]}
    assert outcomes(tier, PAGES[:3]) <= {ReadOutcome.ABSENT, ReadOutcome.DAMAGED}
    assert outcomes(tier, PAGES[3:]) == {ReadOutcome.EXACT}
    tier.close()


def test_frames_beyond_the_end_of_the_file_are_not_read(tmp_path: Path) -> None:
    """Dropping such a page would have requested four billion frames from the disk."""
    far = (file_format.FrameExtent(2, (1 << 32) - 1),)
    assert spoil_headers(left(tmp_path), lambda header: msgspec.structs.replace(header, extents=far)) >= 3
    tier = small_tier(tmp_path, environments=1)
    assert outcome_of(tier, PAGES[0]) is ReadOutcome.DAMAGED
    assert tier.write([PAGES[1].key], []).undropped == ""
    assert outcome_of(tier, PAGES[1]) is ReadOutcome.ABSENT
    tier.close()
    smaller = small_tier(tmp_path, cap=1 << 20, environments=1)
    assert outcome_of(smaller, PAGES[2]) is not ReadOutcome.EXACT
    assert outcome_of(smaller, PAGES[-1]) is ReadOutcome.EXACT
    smaller.close()


def test_an_invalid_namespace_is_not_reported(tmp_path: Path) -> None:
    file = left(tmp_path)
    data = file.read_bytes()
    packed = msgspec.msgpack.encode(PAGES[0].space)
    wrong = msgspec.msgpack.encode(msgspec.structs.replace(PAGES[0].space, page_tokens=-3))
    assert len(packed) == len(wrong)
    assert packed in data
    file.write_bytes(data.replace(packed, wrong))
    tier = small_tier(tmp_path, environments=1)
    assert keys_in(tier) == set()
    assert outcomes(tier, PAGES) == {ReadOutcome.EXACT}
    tier.close()


@pytest.mark.parametrize("last", [1 << 20, 1 << 40, 1 << 52, (1 << 64) - 1])
def test_a_file_is_not_extended_to_an_invalid_length(tmp_path: Path, last: int) -> None:
    """A meta page holds a nonsense number of the last page: a verification would first extend the file to it."""
    file = left(tmp_path)
    for meta in (0, PAGE):
        write_at(file, meta + LAST_PAGE_AT, last.to_bytes(8, "little"))
    length = file.stat().st_size
    tier = small_tier(tmp_path, environments=1)
    assert tier.state().opened.startswith("rebuilt empty: ")
    assert file.stat().st_size < length
    tier.close()


@pytest.mark.parametrize("tree", range(2))
@pytest.mark.parametrize("bit", range(16))
def test_a_tree_of_another_kind_is_not_opened(tmp_path: Path, tree: int, bit: int) -> None:
    """LMDB uses flags of the meta page: some of them ended its process, and no verification reads them."""
    file = left(tmp_path)
    for meta in (0, PAGE):
        flip_bit(file, meta + FLAGS_AT + 48 * tree, bit)
    tier = small_tier(tmp_path, environments=1)
    assert tier.state().opened == f"rebuilt empty: {file} has incomplete meta pages"
    tier.close()


def test_an_unreadable_note_is_reported_in_one_line(tmp_path: Path) -> None:
    file = left(tmp_path)
    data = file.read_bytes()
    about = msgspec.msgpack.encode(file_format.About(file_format.FORMAT, FRAME, BUILD))
    assert about in data
    file.write_bytes(data.replace(about, bytes(len(about))))
    assert miscounted(str(file)).startswith("its own description cannot be read (")
    tier = small_tier(tmp_path, environments=1)
    assert tier.state().opened.startswith("rebuilt empty: LMDB rejects it")
    tier.close()


def test_damage_found_by_a_read_is_verified_by_the_next_worker(tmp_path: Path) -> None:
    """Without it, pages of the other parts could not be read until the next write: a read checks each part."""
    tier = small_tier(tmp_path, environments=2)
    assert all(tier.write([], PAGES).stored)
    file = tmp_path / "0" / "data.mdb"
    for page in Anatomy(file.read_bytes()).of(Part.HEADERS_LEAF):
        write_at(file, page * PAGE + PAGE_FLAGS_AT, b"\x04\x00")
    with pytest.raises(TierError, match="the next disk worker verifies it"):
        outcomes(tier, PAGES)
    with contextlib.suppress(TierError):
        tier.close()
    tier = small_tier(tmp_path, environments=2)
    assert tier.state().opened.startswith("rebuilt empty in 1 of 2 parts: ")
    assert outcomes(tier, PAGES) == {ReadOutcome.EXACT, ReadOutcome.ABSENT}
    tier.close()


@pytest.mark.parametrize("part", [Part.FREE_LIST, Part.SMALL])
def test_a_page_that_claims_to_be_longer_is_verified(tmp_path: Path, part: Part) -> None:
    """Found once: LMDB wrote memory behind the page to the file, and reported an input/output error for ever."""
    file = left(tmp_path)
    data = bytearray(file.read_bytes())
    for page in Anatomy(bytes(data)).of(part):
        data[page * PAGE + PAGE_FLAGS_AT] ^= P_OVERFLOW
    file.write_bytes(data)
    tier = small_tier(tmp_path, environments=1)
    with pytest.raises(TierError, match="the next disk worker verifies it"):
        for number in range(200, 240):
            tier.write([], [outgoing(number)])
    tier.distrust()
    with contextlib.suppress(TierError):
        tier.close()
    tier = small_tier(tmp_path, environments=1)
    assert tier.state().opened.startswith("rebuilt empty: ")
    assert all(tier.write([], PAGES).stored)
    tier.close()


def life_that_drops(folder: Path, key: bytes) -> str:
    """Runs a worker that drops a page, and returns the error that ended it; the next worker has to verify the tier."""
    tier = small_tier(folder, environments=2)
    try:
        with pytest.raises(TierError) as ended:
            tier.write([key], [])
        tier.distrust()
        return str(ended.value)
    finally:
        with contextlib.suppress(TierError):
            tier.close()


def test_damage_that_no_verification_detects_is_rebuilt(tmp_path: Path) -> None:
    """A frame is marked as a database: it is read and verified without an error, but it cannot be dropped."""
    tier = small_tier(tmp_path, environments=2)
    assert all(tier.write([], PAGES).stored)
    tier.close()
    key = PAGES[7].key
    file = next(file for file in tmp_path.glob("?/data.mdb") if file_format.frame_key(key, 0) in file.read_bytes())
    data = bytearray(file.read_bytes())
    for node in re.finditer(re.escape(file_format.frame_key(key, 0)), bytes(data)):  # also its older versions
        data[node.start() - NODE_FLAGS_BEFORE] ^= F_SUBDATA
    file.write_bytes(data)
    assert life_that_drops(tmp_path, key).endswith("the next disk worker verifies it")
    assert life_that_drops(tmp_path, key).endswith("which verification does not detect: it is rebuilt empty")
    tier = small_tier(tmp_path, environments=2)
    assert tier.state().opened == f"rebuilt empty in 1 of 2 parts: {file} is missing"
    assert outcomes(tier, PAGES) == {ReadOutcome.EXACT, ReadOutcome.ABSENT}, "the other part must be unchanged"
    assert all(tier.write([], [PAGES[7]]).stored)
    tier.close()


def disorder(file: Path) -> None:
    """Makes the last key the smallest."""
    data = bytearray(file.read_bytes())
    last = max(page.key for page in PAGES)
    at = [place for place in range(len(data)) if data.startswith(last, place)]
    for place in at:
        data[place : place + 32] = bytes(32)
    file.write_bytes(data)


def test_keys_out_of_order_do_not_cause_an_endless_walk(tmp_path: Path) -> None:
    """A tree that leads back to itself has no end: the next worker verifies it."""
    disorder(left(tmp_path))
    tier = small_tier(tmp_path, environments=1)
    with pytest.raises(TierError, match="keys are out of order"):
        keys_in(tier)
    tier.close()
    tier = small_tier(tmp_path, environments=1)
    assert tier.state().opened.startswith("rebuilt empty")
    tier.close()


def test_keys_out_of_order_are_detected_with_a_smaller_limit(tmp_path: Path) -> None:
    disorder(left(tmp_path))
    tier = small_tier(tmp_path, cap=2 << 20, environments=1)
    assert tier.state().opened == "rebuilt empty: LMDB rejects it (its keys are out of order)"
    tier.close()
