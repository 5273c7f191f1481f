"""Runs work that may crash or hang in a forked child."""

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
    """The result of a child.

    Attributes:
        said: The bytes that the work returned.
        failed: The traceback of an exception.
        signal: The signal that killed the child.
        hung: Whether it was killed after the timeout.
    """

    said: bytes = b""
    failed: str = ""
    signal: int = 0
    hung: bool = False


def in_a_child(work: Callable[[], bytes], seconds: float) -> Ended:
    """Runs the work in a child and returns its result. The caller guarantees that this process has one thread only."""
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
    """Returns whether the child still runs and must be killed; a child that has ended is not reaped by this call."""
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
    """Returns all bytes until the child closes the pipe, and whether it failed to do so within the timeout."""
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
    except BaseException:  # noqa: BLE001  any exception is reported to the parent
        _say(pipe, traceback.format_exc().encode())
    finally:
        os._exit(code)


def _say(pipe: int, said: bytes) -> None:
    while said:
        said = said[os.write(pipe, said) :]
