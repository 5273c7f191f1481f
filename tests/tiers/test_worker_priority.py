"""The priority of a disk worker's threads: requests wait for reads, and nothing waits for writes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from disk_daemon import FRAMES, write_through
from eventually import PATIENCE_S
from keyed_pages import prompt, store

PAGE = 60_000
LOWER = 10


def test_a_process_of_a_low_priority_keeps_it() -> None:
    """Without CAP_SYS_NICE the kernel refuses to raise it, also for root in a container."""
    code = "import os\nfrom pagetier.shm.process import lower_priority\nlower_priority()\nprint(os.getpriority(0, 0))"
    own = os.getpriority(os.PRIO_PROCESS, 0)
    plain = ["setpriv", "--bounding-set", "-sys_nice", "--inh-caps", "-sys_nice"] if os.geteuid() == 0 else []
    for nice in (0, max(0, LOWER - own), max(0, 15 - own)):  # the tests may run at any priority
        command = [*plain, "nice", "-n", str(nice), sys.executable, "-c", code]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
        assert int(done.stdout) == max(own + nice, LOWER)


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
