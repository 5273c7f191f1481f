"""The fork server of injection.fork_client: it has imported everything and is attached to nothing.

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
from typing import Any, Final

import injection.roles  # noqa: F401
import pagetier.daemon.main  # noqa: F401  so that daemons start at once
from child_process import run_and_exit

_PR_SET_CHILD_SUBREAPER: Final = 36
_PR_SET_PDEATHSIG: Final = 1
_DESCRIPTORS: Final = 3
_CHUNK: Final = 1 << 20


def main(descriptor: int) -> None:
    """Serves requests until the other end of the socket is closed."""
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    gc.collect()
    gc.freeze()
    link = socket.socket(fileno=descriptor)
    link.send(b"warm")
    while True:
        data, descriptors, _, _ = socket.recv_fds(link, _CHUNK, _DESCRIPTORS)
        if not data:
            return
        request = pickle.loads(data)
        answer = _ended() if request is None else _spawn(link, request, descriptors)
        for one in descriptors:
            os.close(one)
        link.send(pickle.dumps(answer))


def _ended() -> tuple[bool, dict[int, int]]:
    """Returns whether processes still run, and the exit codes of those that ended since the last call."""
    ended = {}
    try:
        while (child := os.waitpid(-1, os.WNOHANG))[0]:
            ended[child[0]] = os.waitstatus_to_exitcode(child[1])
    except ChildProcessError:
        return False, ended
    return True, ended


def _spawn(link: socket.socket, request: Any, descriptors: list[int]) -> int:
    log, module, name, arguments = request
    child = os.fork()

    def live() -> None:
        link.close()
        _write_to(log)
        getattr(importlib.import_module(module), name)(*descriptors, *arguments)

    if not child:
        run_and_exit(live)
    return child


def _write_to(log: str) -> None:
    """Turns the output of this new process to its log, and leaves its descendants to the server."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 0)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for standard in (1, 2):
        os.dup2(file, standard)
    os.close(file)


if __name__ == "__main__":
    main(int(sys.argv[1]))
