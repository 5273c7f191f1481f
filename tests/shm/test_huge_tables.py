"""Tests that the daemon asks for huge pages for its own large tables, which it touches at random places."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from anonymous_segments import Memory
from pagetier.shm.geometry import Geometry

ENTRIES: Final = 1 << 16
GHOST_BYTES: Final = 48  # of a page: four records of pages that left
THP: Final = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def advised_bytes() -> int:
    """Returns the bytes of this process's private memory for which huge pages were asked."""
    mappings = re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text(), flags=re.MULTILINE)
    advised = [each for each in mappings if re.match(r"\S+ ...p", each) and re.search(r"^VmFlags:.* hg", each, re.M)]
    return sum(int(size) << 10 for each in advised for size in re.findall(r"^Size: +(\d+) kB", each, re.M))


@pytest.mark.skipif(not THP.exists(), reason="this kernel has no transparent huge pages")
def test_pages_that_left_are_remembered_in_huge_pages() -> None:
    """In small ones each of the first evictions zeroes 4 KiB: half of its time, for as many as there are entries."""
    memory = Memory(Geometry(4096, ENTRIES, ENTRIES, 4))
    owner = memory.adopted()
    before = advised_bytes()
    owner.learn_returns()
    assert advised_bytes() - before >= ENTRIES * GHOST_BYTES - (8 << 10), "but for the ends of the table"
    owner.forget_returns()
    memory.close()
