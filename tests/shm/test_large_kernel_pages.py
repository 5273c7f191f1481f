"""Tests segments on a simulated kernel whose pages are larger than those of the segments."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from compiled_library import library
from pagetier.shm.segments import SegmentRequest

KERNEL: Final = Path(__file__).with_name("large_kernel_pages.c")
DAEMON: Final = """
import mmap, os, sys
from pagetier.shm import index_memory
from pagetier.shm._core import Session
from pagetier.shm.geometry import Geometry
from pagetier.shm.process import Process
from pagetier.shm.segments import SegmentRequest, take

assert mmap.PAGESIZE == 64 << 10
index_memory.share_count = lambda nbytes: 3
segments = take(SegmentRequest(sys.argv[1], Geometry(4096, 64, 1000, 4), "test"))
me = Process.of(os.getpid())
slot = segments.owner.attach(me.pid, os.getuid(), me.started, 1, "test")
session = Session(*segments.slot_descriptors(slot), slot)
session.populate_index()
session.populate(4096, 4096)
session.read_events()
segments.owner.serve_events()
segments.owner.reap(slot)
segments.remove()
"""


def test_segments_are_made_and_populated_where_pages_of_the_kernel_have_64_kib(segment_request: SegmentRequest) -> None:
    environ = os.environ | {"LD_PRELOAD": str(library(KERNEL))}
    command = [sys.executable, "-c", DAEMON, segment_request.name]
    done = subprocess.run(command, env=environ, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0, done.stderr
