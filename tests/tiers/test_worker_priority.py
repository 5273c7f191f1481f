"""The priority of a disk worker's threads: requests wait for reads, and nothing waits for writes."""

from __future__ import annotations

import os
from pathlib import Path

from disk_daemon import FRAMES, write_through
from eventually import PATIENCE_S
from keyed_pages import prompt, store

PAGE = 60_000
LOWER = 10


def threads_of(pid: int) -> list[int]:
    """Returns the threads of a process."""
    return [int(thread.name) for thread in Path(f"/proc/{pid}/task").iterdir()]


def nice_values(pid: int) -> dict[int, int]:
    """Returns the nice value of each thread of a process."""
    return {tid: os.getpriority(os.PRIO_PROCESS, tid) for tid in threads_of(pid)}


def test_reads_have_the_priority_of_an_engine_and_writes_have_a_lower_one() -> None:
    own = os.getpriority(os.PRIO_PROCESS, 0)
    with write_through() as daemon, daemon.client() as client:
        keys = prompt(0, FRAMES // 2)
        assert store(client, keys, PAGE, timeout=PATIENCE_S).stored == len(keys)
        daemon.push_out(client, keys)
        before = nice_values(daemon.worker())
        assert before[daemon.worker()] == own, "it receives the requests"
        assert max(own, LOWER) in before.values(), "it has written"
        assert client.prefetch(keys).wait(PATIENCE_S) == len(keys)
        readers = [nice for thread, nice in nice_values(daemon.worker()).items() if thread not in before]
        assert readers and set(readers) == {own}
