"""Work that may crash or never end, done in a child that is forked for it."""

from __future__ import annotations

import os
import select
import signal
import time
import traceback
from collections.abc import Callable

import msgspec

_CHUNK = 1 << 20
_NOTHING = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)


class Ended(msgspec.Struct, frozen=True):
    """How a child ended. said: what the work returned; failed: the traceback of an exception; signal: that killed it;
    hung: whether it was killed because it took too long."""

    said: bytes = b""
    failed: str = ""
    signal: int = 0
    hung: bool = False


def in_a_child(work: Callable[[], bytes], seconds: float) -> Ended:
    """Does the work. The caller guarantees that this process has one thread only."""
    mine, its = os.pipe()
    child = os.fork()
    if not child:
        os.close(mine)
        _work(work, its)
    os.close(its)
    try:
        said, hung = _said(mine, time.monotonic() + seconds)
    finally:
        os.close(mine)
        if hung_or_gone(child):
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    return _ended(said, status, hung=hung)


def hung_or_gone(child: int) -> bool:
    """Whether there is somebody to kill; who has ended already is not reaped by this."""
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None


def _ended(said: bytes, status: int, *, hung: bool) -> Ended:
    if hung:
        return Ended(hung=True)
    if os.WIFSIGNALED(status):
        return Ended(signal=os.WTERMSIG(status))
    if os.WEXITSTATUS(status):
        return Ended(failed=said.decode(errors="replace"))
    return Ended(said)


def _said(pipe: int, ends: float) -> tuple[bytes, bool]:
    """All until the child closes it, and whether it did not in time."""
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    said = b""
    while poll.poll(max(0.0, ends - time.monotonic()) * 1000):
        some = os.read(pipe, _CHUNK)
        if not some:
            return said, False
        said += some
    return said, True


def _work(work: Callable[[], bytes], pipe: int) -> None:
    code = 1
    try:
        os.dup2(_NOTHING, 2)
        _say(pipe, work())
        code = 0
    except BaseException:  # noqa: BLE001  the parent is told, whatever it is
        _say(pipe, traceback.format_exc().encode())
    finally:
        os._exit(code)


def _say(pipe: int, said: bytes) -> None:
    while said:
        said = said[os.write(pipe, said) :]
