"""Children of the test's process that die when and where the test decides."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator

DIED = 77


def in_child(action: Callable[[], object]) -> int:
    """Runs an action in a forked child.

    Returns:
        Its exit code (1: it raised), or minus the number of the signal that ended it.
    """
    return _end_of(_fork(action))


def spawn(action: Callable[[], object]) -> int:
    """Forks a child that runs an action, and returns its PID after it has begun."""
    begun, begin = os.pipe()
    child = _fork(lambda: (os.write(begin, b"!"), action()))
    os.read(begun, 1)
    os.close(begun)
    os.close(begin)
    return child


def kill(child: int) -> None:
    """Kills a child with SIGKILL and waits for its end."""
    os.kill(child, signal.SIGKILL)
    assert _end_of(child) == -signal.SIGKILL, "the child had already ended"


def deaths(action: Callable[[], object], before: Callable[[], object] = lambda: None) -> Iterator[int]:
    """Yields each step at which the action can die, after a child has died there. A step is a call into C."""
    for step in range(1, 10_000):
        before()
        if not _dies_at(step, action):
            assert step > 10, "too few steps were traced"
            return
        yield step


def _dies_at(step: int, action: Callable[[], object]) -> bool:
    calls = 0

    def count(_: object, event: str, __: object) -> None:
        nonlocal calls
        calls += event == "c_call"
        if calls == step:
            os._exit(DIED)

    def counted() -> None:
        sys.setprofile(count)
        action()

    code = in_child(counted)
    assert code in (0, DIED), f"step {step} ended with {code}"
    return code == DIED


def _fork(action: Callable[[], object]) -> int:
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        action()
        code = 0
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        sys.setprofile(None)
        os._exit(code)


def _end_of(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
