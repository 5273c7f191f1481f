"""Runs a command in namespaces of its own: in_namespaces.py WHAT... -- COMMAND...

WHAT is among `user`, `pid`, `proc=OPTIONS` (a /proc of its own, mounted with these options), `time=SECONDS` (by which
its clocks are ahead), `no-ptrace` (root without CAP_SYS_PTRACE, from which hidepid hides processes) and
`last-pid=NUMBER` (the command gets the next PID).
The signals that a daemon knows are passed on, and its exit code is returned.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

_FLAGS = {"user": 0x10000000, "pid": 0x20000000, "proc": 0x00020000, "time": 0x00000080}
_MS_REC_PRIVATE = 0x4000 | 1 << 18
_PR_SET_PDEATHSIG, _PR_CAPBSET_DROP, _CAP_SYS_PTRACE = 1, 24, 19
_PASSED_ON = (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP, signal.SIGINT)
REFUSED = 77
libc = ctypes.CDLL(None, use_errno=True)


def within(*what: str) -> list[str]:
    """Returns the beginning of a command line that runs the rest of it in these namespaces."""
    return [sys.executable, "-S", __file__, *what, "--"] if what else []


def _check(result: int) -> None:
    if result:
        sys.stderr.write(f"no namespaces here: {os.strerror(ctypes.get_errno())}\n")
        sys.exit(REFUSED)


def _unshare(names: Sequence[str]) -> None:
    flags = 0
    for name in names:
        flags |= _FLAGS.get(name, 0)
    uid, gid = os.geteuid(), os.getegid()
    _check(libc.unshare(flags))
    if "user" in names:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")


def _prepare(values: dict[str, str]) -> None:
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if "proc" in values:
        _check(libc.mount(b"none", b"/", None, _MS_REC_PRIVATE, None))
        _check(libc.mount(b"proc", b"/proc", b"proc", 0, values["proc"].encode()))
    if "no-ptrace" in values:
        libc.prctl(_PR_CAPBSET_DROP, _CAP_SYS_PTRACE, 0, 0, 0)


def _run(command: Sequence[str], values: dict[str, str]) -> None:
    """Becomes the command, or the parent of one with a chosen PID."""
    _prepare(values)
    if "last-pid" in values:
        Path("/proc/sys/kernel/ns_last_pid").write_text(values["last-pid"])
        inner = os.fork()
        if inner:
            os._exit(_waited(inner))
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.execvp(command[0], list(command))


def _waited(child: int) -> int:
    """Passes signals on to a child until it ends, and returns its exit code."""
    for number in _PASSED_ON:
        signal.signal(number, lambda got, _: os.kill(child, got))
    return abs(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def main(arguments: Sequence[str]) -> int:
    """Runs the command to its end and returns its exit code."""
    at = list(arguments).index("--")
    values = dict(word.partition("=")[::2] for word in arguments[:at])
    _unshare(list(values))
    if "time" in values:
        offset = values["time"]
        Path("/proc/self/timens_offsets").write_text(f"monotonic {offset} 0\nboottime {offset} 0\n")
    child = os.fork()
    if not child:
        _run(arguments[at + 1 :], values)
    return _waited(child)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
