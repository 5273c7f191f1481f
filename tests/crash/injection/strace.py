"""Traces running processes with strace, and makes their system calls fail, wait or kill them."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from eventually import PATIENCE_S, eventually
from injection.injector import CALLS, Met, Site

_OTHER_NAMES: Final = {
    "pwrite64": Site.PWRITE,
    "pwritev": Site.WRITEV,
    "pwritev2": Site.WRITEV,
    "preadv": Site.PREAD,
    "preadv2": Site.PREAD,
    "renameat": Site.RENAME,
    "renameat2": Site.RENAME,
    "unlinkat": Site.UNLINK,
    "mkdirat": Site.MKDIR,
}
_OF_CALL: Final = {site.name.lower(): site for site in CALLS - {Site.PWRITE, Site.PREAD, Site.OPEN}} | _OTHER_NAMES
_UNKNOWN: Final = ("copy_file_range", "sendfile", "splice", "link", "linkat", "symlink", "io_uring_enter", "io_submit")
"""Other calls that change a file, which the tier does not use: one in a trace is a finding."""
_LINE: Final = re.compile(r"^\d+ +(\w+)\((.*)")


@contextmanager
def strace(pids: Sequence[int], *words: str) -> Iterator[None]:
    """Attaches strace to these processes, all their threads and children, for the duration of the block.

    Skips the test if strace is not installed or not permitted.
    """
    program = shutil.which("strace")
    if program is None:
        pytest.skip("strace is not installed")
    command = [program, "-f", *words, *(f"--attach={pid}" for pid in pids)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for _ in pids:
            if "attached" not in (said := process.stderr.readline()):
                process.kill()
                pytest.skip(f"strace is not permitted: {said.strip()}")
        try:
            yield
        finally:
            process.terminate()
            process.communicate(timeout=PATIENCE_S)


@contextmanager
def recorded(pids: Sequence[int], file: Path) -> Iterator[None]:
    """Records every call that can change a file, or reads one as the tier does, in a file for calls_in()."""
    with strace(pids, "--decode-fds=path", "--output", str(file), "-e", f"trace={','.join((*_OF_CALL, *_UNKNOWN))}"):
        yield


@contextmanager
def injected(pid: int, call: str, what: str) -> Iterator[None]:
    """Changes the result of a call of this process, in strace's syntax (error=EIO:when=2), counted for each thread."""
    with strace([pid], "--output", "/dev/null", "-e", f"trace={call}", "-e", f"inject={call}:{what}"):
        assert eventually(lambda: _are_traced(pid))  # strace says that it is attached before all threads are
        yield


def _are_traced(pid: int) -> bool:
    """Returns whether a process traces each thread of this one."""
    return not any("TracerPid:\t0\n" in file.read_text() for file in Path(f"/proc/{pid}/task").glob("*/status"))


def calls_in(file: Path, folder: Path) -> Counter[Met]:
    """Returns the calls of a trace on the files in a folder.

    Raises:
        ValueError: The injector does not cover a call of the trace.
    """
    found: Counter[Met] = Counter()
    for line in file.read_text().splitlines():
        match = _LINE.match(line)
        if match is None or f"{folder}" not in match[2]:
            continue
        if match[1] in _UNKNOWN:
            raise ValueError(f"the injector does not cover this call: {line}")
        name = match[2].split(f"{folder}", 1)[1]
        found[Met(_OF_CALL[match[1]], re.split(r'[">]', name, maxsplit=1)[0].lstrip("/"))] += 1
    return found
