"""The fork server of kill_points.fork_client.

It has imported everything and is attached to nothing, so forks start at once.

Its single thread receives requests over a socket and reports the exit codes of its children. It is the parent of all of
them and adopts their descendants.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import pickle
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from typing import Any, Final

_PR_SET_CHILD_SUBREAPER: Final = 36
_PR_SET_PDEATHSIG: Final = 1
_WARM: Final = ("pagetier.daemon.main", "pagetier.client", "kill_points.roles")
_DESCRIPTORS: Final = 3
_CHUNK: Final = 1 << 20


def main(descriptor: int) -> None:
    """Serves requests until the other end of the socket is closed."""
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    for name in _WARM:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    link = socket.socket(fileno=descriptor)
    link.send(b"warm")
    while order := _receive(link):
        request, descriptors = order
        answer = _spawn(link, request, descriptors) if request[0] == "spawn" else _ended()
        for one in descriptors:
            os.close(one)
        link.send(pickle.dumps(answer))


def _receive(link: socket.socket) -> tuple[Any, list[int]] | None:
    data, descriptors, _, _ = socket.recv_fds(link, _CHUNK, _DESCRIPTORS)
    return (pickle.loads(data), list(descriptors)) if data else None


def _ended() -> dict[int, int]:
    """Returns the exit codes of the processes that ended since the last call; key 0 holds the number that still run."""
    ended = {}
    try:
        while (ended_child := os.waitpid(-1, os.WNOHANG))[0]:
            ended[ended_child[0]] = os.waitstatus_to_exitcode(ended_child[1])
    except ChildProcessError:
        return ended | {0: 0}
    return ended | {0: 1}


def _spawn(link: socket.socket, request: Any, descriptors: list[int]) -> int:
    _, log, place, name, arguments = request
    child = os.fork()
    if not child:
        link.close()
        _live(log, lambda: getattr(importlib.import_module(place), name)(*descriptors, *arguments))
    return child


def _live(log: str, work: Callable[[], object]) -> None:
    """Runs the work in this process and ends it."""
    code = 1
    try:
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 0)
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for standard in (1, 2):
            os.dup2(file, standard)
        os.close(file)
        work()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main(int(sys.argv[1]))
