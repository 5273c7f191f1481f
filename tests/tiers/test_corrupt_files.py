"""Damaged files: a read returns exact bytes or a miss, never other bytes.

A damaged tree can crash liblmdb, so each is opened by a process of its own. Its death by a signal is accepted, like the
death of a worker.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import struct
import subprocess
import sys
from pathlib import Path

import lmdb
import pytest

from disk_corruption.file_anatomy import Anatomy, Part
from file_changes import flip_bit, write_at
from pagetier.tiers.base import DoubtError, Outgoing, ReadOutcome, TierError
from pagetier.tiers.disk.file_format import FORMAT
from store_pages import CAP, keys_in, outcome_of, outcomes, outgoings, small_tier

PAGES = outgoings(range(40))
FLIPS = 60
_ACCEPTED = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT)


def leave(folder: Path) -> None:
    tier = small_tier(folder, environments=1)
    assert all(tier.write([], PAGES).stored)
    tier.close()


def tree_pages(data: bytes) -> list[int]:
    """Returns the offsets of branches and leaves."""
    places = range(0, len(data), 4096)
    return [at for at in places if data[at : at + 8] == (at // 4096).to_bytes(8, "little") and data[at + 10] in (1, 2)]


def damage(pristine: Path, folder: Path, seed: int) -> None:
    """Changes one byte: anywhere, or every second time in a tree or a meta page."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(pristine, folder)
    path = folder / "0" / "data.mdb"
    data = bytearray(path.read_bytes())
    chance = random.Random(seed)
    places = [0, 4096, *tree_pages(bytes(data))]
    at = chance.randrange(len(data)) if seed % 2 else chance.choice(places) + chance.randrange(4096)
    data[at] ^= 1 << chance.randrange(8)
    path.write_bytes(data)


def use(folder: Path) -> None:
    """Does everything that a worker does. Raises AssertionError if bytes are wrong that are called exact."""
    tier = small_tier(folder, environments=1)
    outcomes(tier, PAGES)
    keys_in(tier)
    more = outgoings(range(100, 120))
    stored = tier.write([page.key for page in PAGES[:5]], more).stored
    outcomes(tier, [*(page for page, good in zip(more, stored, strict=True) if good), *PAGES])
    tier.close()


def main(pristine: str, folder: str, first: int) -> None:
    """Runs in a child: damages and uses tiers until it is done or dies, and prints what it survived."""
    for seed in range(first, FLIPS):
        damage(Path(pristine), Path(folder), seed)
        try:
            use(Path(folder))
        except TierError as error:
            print(seed, error, flush=True)  # noqa: T201
        else:
            print(seed, flush=True)  # noqa: T201


def test_a_flipped_bit_never_returns_other_bytes(in_memory: Path) -> None:
    leave(in_memory / "pristine")
    survived, first = 0, 0
    while first < FLIPS:
        command = [sys.executable, __file__, str(in_memory / "pristine"), str(in_memory / "copy"), str(first)]
        child = subprocess.run(command, capture_output=True, text=True, check=False, env=_environment())
        lines = child.stdout.splitlines()
        survived += len(lines)
        first += len(lines) + 1
        assert child.returncode == 0 or -child.returncode in _ACCEPTED, (first - 1, child.stderr)
    assert survived > FLIPS // 2


def _environment() -> dict[str, str]:
    return {"PYTHONPATH": ":".join(sys.path), "PYTHONDONTWRITEBYTECODE": "1"}


def test_a_damaged_page_is_dropped_and_counted(tmp_path: Path) -> None:
    leave(tmp_path)
    path = tmp_path / "0" / "data.mdb"
    flip_bit(path, path.read_bytes().index(bytes(PAGES[3].frames[1])) + 99, 2)
    tier = small_tier(tmp_path, environments=1)
    assert outcome_of(tier, PAGES[3]) is ReadOutcome.DAMAGED
    assert outcome_of(tier, PAGES[3]) is ReadOutcome.ABSENT
    assert outcomes(tier, [*PAGES[:3], *PAGES[4:]]) == {ReadOutcome.EXACT}
    assert tier.state().damaged == 1
    assert len(keys_in(tier)) == 39
    tier.write([], [PAGES[3]])
    assert outcome_of(tier, PAGES[3]) is ReadOutcome.EXACT
    tier.close()


@pytest.mark.parametrize("field", [0, 1, 8, 24])
def test_a_page_with_a_damaged_header_is_dropped(tmp_path: Path, field: int) -> None:
    """Damages its format, codec, size or checksum."""
    leave(tmp_path)
    path = tmp_path / "0" / "data.mdb"
    data = path.read_bytes()
    sizes = PAGES[7].size.to_bytes(8, "little") + PAGES[7].stamp.to_bytes(8, "little")
    found = [at for at in range(len(data)) if data.startswith(sizes, at) and data[at - 8] == FORMAT]
    for at in found:
        flip_bit(path, at - 8 + field, 6)
    tier = small_tier(tmp_path, environments=1)
    assert outcome_of(tier, PAGES[7]) in (ReadOutcome.DAMAGED, ReadOutcome.ABSENT)
    assert outcomes(tier, [*PAGES[:7], *PAGES[8:]]) == {ReadOutcome.EXACT}
    keys_in(tier)
    tier.close()


def test_a_file_truncated_while_open_fails_reads_or_the_process(tmp_path: Path) -> None:
    """Truncates values only: preadv reports that, where a mapping would kill the process."""
    leave(tmp_path)
    tier = small_tier(tmp_path, environments=1)
    file = tmp_path / "0" / "data.mdb"
    data = file.read_bytes()
    os.truncate(file, max(tree_pages(data)) + 4096)
    assert outcome_of(tier, PAGES[0]) in (ReadOutcome.EXACT, ReadOutcome.DAMAGED, ReadOutcome.ABSENT)
    os.truncate(file, len(data))
    tier.close()


def spoil_value(folder: Path, frame: int) -> None:
    """Overwrites the first page of a value of PAGES[3] with noise, so that the value's length is unknown."""
    (path,) = (file for file in folder.glob("*/data.mdb") if bytes(PAGES[3].frames[frame]) in file.read_bytes())
    at = path.read_bytes().index(bytes(PAGES[3].frames[frame])) // 4096 * 4096
    write_at(path, at, random.Random(1).randbytes(4096))


@pytest.mark.parametrize("frame", [0, 1, 2])
def test_a_damaged_value_that_blocks_shrinking_costs_only_its_environment(tmp_path: Path, frame: int) -> None:
    """Its page is among the coldest, and LMDB fails to drop it at each opening, as long as the page exists."""
    tier = small_tier(tmp_path)
    pages = outgoings(range(tier.capacity // 3 - 4))
    assert all(tier.write([], pages).stored)
    tier.close()
    spoil_value(tmp_path, frame)
    tier = small_tier(tmp_path, cap=CAP // 2)
    assert tier.state().opened.startswith("rebuilt empty in 1 of 2 parts: LMDB rejects it (")
    held = keys_in(tier)
    assert outcomes(tier, [page for page in pages if page.key in held]) == {ReadOutcome.EXACT}
    more = outgoings(range(1000, 1040))
    assert all(tier.write([], more).stored)
    assert outcomes(tier, more) == {ReadOutcome.EXACT}
    tier.close()
    tier = small_tier(tmp_path, cap=CAP // 2)
    assert tier.state().opened == "as it was left"
    tier.close()


def require_proof_after(folder: Path, drops: list[bytes], pages: list[Outgoing]) -> None:
    """Changes a page, which ends the worker; the next one verifies the tier, finds it damaged and works."""
    tier = small_tier(folder, environments=1)
    with pytest.raises(TierError, match=r"is damaged \("):
        tier.write(drops, pages)
    tier.distrust()
    tier.close()
    tier = small_tier(folder, environments=1)
    assert tier.state().opened.startswith("rebuilt empty: ")
    assert all(tier.write([], PAGES).stored)
    tier.close()


@pytest.mark.parametrize("frame", [0, 1, 2])
@pytest.mark.parametrize("again", [[], [PAGES[3]]])
def test_a_damaged_value_that_blocks_a_write_is_verified_by_the_next_worker(
    tmp_path: Path, frame: int, again: list[Outgoing]
) -> None:
    """The page is dropped or replaced: the worker does not continue after a failed change."""
    leave(tmp_path)
    spoil_value(tmp_path, frame)
    require_proof_after(tmp_path, [] if again else [PAGES[3].key], again)


def test_a_broken_tree_is_verified_by_the_next_worker(tmp_path: Path) -> None:
    """Otherwise nothing could be stored any more."""
    tier = small_tier(tmp_path, environments=1)
    assert all(tier.write([], outgoings(range(200))).stored)
    tier.close()
    file = tmp_path / "0" / "data.mdb"
    data = bytearray(file.read_bytes())
    (branch,) = Anatomy(bytes(data)).of(Part.FRAMES_BRANCH)
    at = branch * 4096
    (lower,) = struct.unpack_from("<H", data, at + 12)
    for (node,) in struct.iter_unpack("<H", data[at + 16 : at + lower]):
        data[at + node + 4] ^= 1  # the 33rd bit of a page's number
    file.write_bytes(data)
    require_proof_after(tmp_path, [], PAGES)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))


def test_a_file_that_was_deleted_as_damaged_is_reported_with_the_damage(tmp_path: Path) -> None:
    """A thread that finds the file missing may report first."""
    tier = small_tier(tmp_path / "tier", environments=1)
    (environment,) = tier._environments
    environment.proven = True
    why = environment.broke(lmdb.CorruptedError("a page has another number"))
    assert "which verification does not detect" in why
    for check in (tier.state, tier.sync, tier.close):
        with pytest.raises(DoubtError) as raised:
            check()
        assert str(raised.value) == why
