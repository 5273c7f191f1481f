"""Tests that the daemon asks for huge pages and says how much it got, where /dev/shm allows them and where not."""

from __future__ import annotations

import ctypes
import json
import mmap
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from eventually import PATIENCE_S
from pagetier.daemon.host.host import Host
from pagetier.daemon.host.huge_pages import huge_share
from pagetier.daemon.host.memory_policy import Region
from pagetier.daemon.status.huge_page_report import HugePageReport
from refused_starts import own_shm, pagetierd, with_shm

# Prints what a daemon reports, and what smaps says of its arena and of a client's.
REPORTING = """
import json, re, subprocess, sys, time
sys.path[:] = PLACES
from pathlib import Path
import numpy as np
from eventually import PATIENCE_S, eventually
from running_daemon import RunningDaemon, namespace

def in_smaps(pid, daemon):
    text = Path(f"/proc/{pid}/smaps").read_text()
    arena = text[text.index(f"{daemon.name}.arena"):]
    return [int(re.search(rf"^{name}: +([0-9]+) kB", arena, re.M)[1]) for name in ("Rss", "ShmemPmdMapped")]

def reported(daemon):
    return json.loads(daemon.pagetier("stats", "--json").stdout)["huge_pages"]

def doctor(daemon):
    return next(line for line in daemon.pagetier("doctor").stdout.splitlines() if "huge pages" in line)

with RunningDaemon("32MiB", "1MiB", "--set", "arena.prefault=" + PREFAULT) as daemon, daemon.client() as client:
    stored = client.store(namespace().keys(range(16 * 8)), np.ones((8, 1 << 20), np.uint8))
    assert stored.stored == 8 and eventually(lambda: reported(daemon)["index"] is not None)
    share = {"daemon": in_smaps(daemon.pid, daemon), "client": in_smaps("self", daemon)}
    share |= {"reported": reported(daemon), "text": daemon.pagetier("stats").stdout, "doctor": doctor(daemon)}
    subprocess.run(["mount", "-o", "remount,huge=advise", "/dev/shm"], check=True)
    share |= {"remounted": doctor(daemon), "log": daemon.lines("event=huge_pages")}
    print("RESULT", json.dumps(share))
"""


def results(huge: str, prefault: str) -> dict[str, Any]:
    code = REPORTING.replace("PLACES", repr(sys.path)).replace("PREFAULT", repr(prefault))
    ended = pagetierd(code=code, before=with_shm("size=64m", f"huge={huge}"), most_s=4 * PATIENCE_S)
    assert ended.code == 0, ended.text
    found: dict[str, Any] = json.loads(ended.text.partition("RESULT ")[2])
    return found


def share_in_smaps(smaps: list[int]) -> float:
    resident, huge = smaps
    return huge / resident


@own_shm
@pytest.mark.parametrize("prefault", ["populate", "lazy"])
@pytest.mark.parametrize("huge", ["advise", "always", "within_size"])
def test_huge_pages_are_used_where_the_mount_allows_them(huge: str, prefault: str) -> None:
    found = results(huge, prefault)
    share = share_in_smaps(found["daemon"])
    if not share:
        pytest.skip("this host has no free huge page")
    assert share_in_smaps(found["client"]) > 0, "engines use them too"
    assert found["doctor"].startswith("ok")
    if prefault == "populate":
        assert found["reported"]["arena"] == pytest.approx(share, abs=0.1)
        percent = f"{found['reported']['arena']:.0%} of the arena"
        assert percent in found["text"] and percent in found["doctor"] and percent in found["log"][0]


@own_shm
def test_small_pages_are_reported_with_what_to_do() -> None:
    found = results("never", "populate")
    assert (found["daemon"][1], found["reported"]["arena"]) == (0, 0.0)
    assert "0% of the arena" in found["text"]
    assert "mount -o remount,huge=advise /dev/shm" in found["doctor"] and "/etc/fstab" in found["doctor"]
    assert found["remounted"].startswith("warning") and "stop and start the daemon" in found["remounted"]


def test_the_sample_agrees_with_smaps() -> None:
    enabled = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if Host().huge_pages().size != 2 << 20 or "[never]" in enabled.read_text():
        pytest.skip("needs transparent huge pages of 2 MiB")
    with mmap.mmap(-1, 32 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        view = (ctypes.c_char * len(memory)).from_buffer(memory)
        region = Region(ctypes.addressof(view), len(memory))
        assert huge_share(region) is None, "nothing is mapped"
        memory.madvise(mmap.MADV_HUGEPAGE, 0, 16 << 20)
        memory.madvise(mmap.MADV_NOHUGEPAGE, 16 << 20)
        for at in range(0, len(memory), mmap.PAGESIZE):
            memory[at] = 1
        huge = sum(map(int, re.findall(r"AnonHugePages: +(\d+) kB", smaps_of(region)))) << 10
        assert huge_share(region) == pytest.approx(huge / region.length, abs=0.1)
        del view


def smaps_of(region: Region) -> str:
    """Returns the entries of /proc/self/smaps in a region, which may be several mappings."""
    entries = re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text(), flags=re.MULTILINE)
    inside = range(region.address, region.address + region.length)
    return "".join(entry for entry in entries if entry and int(entry.partition("-")[0], 16) in inside)


def test_a_request_that_the_kernel_does_not_know_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pagetier.daemon.host.huge_pages._PAGEMAP_SCAN", 0)
    buffer = (ctypes.c_char * 8192)()
    assert huge_share(Region(ctypes.addressof(buffer) // mmap.PAGESIZE * mmap.PAGESIZE, 8192)) is None
    assert (HugePageReport().text, HugePageReport().few) == ("", False)
