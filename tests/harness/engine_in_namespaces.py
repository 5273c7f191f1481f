"""An engine that can run in namespaces of its own, and holds pages. It attaches again only on request.

As a program it attaches to a socket, prints its PID, and obeys one line of words after the other: see obey().
"""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bare_engine import PAGE, SPACE, Engine, content_of
from eventually import PATIENCE_S
from in_namespaces import within
from numbered_pages import keys_of, write_page
from page_reservations import outcomes_of
from pagetier.shm._core import Pins, ReserveOutcome, answer_columns, page_requests
from pagetier.shm.protocol import Reserve, Reserved

HELD, LATE, CHAIN = 16, 8, 6
_EXIT_OF_A_THREAD = {"x86_64": 60, "aarch64": 93}[os.uname().machine]


class HoldingEngine(Engine):
    """An engine that holds a match and a reservation that it has not written yet."""

    def hold(self, first: int) -> None:
        """Stores and matches HELD pages, and reserves LATE more, half of which it writes."""
        self._held = range(first, first + HELD)
        assert set(self.store(self._held)) == {ReserveOutcome.GRANTED}
        self._pins = self.session.match(Pins, None, keys_of(self._held))
        late = range(first + HELD, first + HELD + LATE)
        pages = page_requests(keys_of(late), struct.pack(f"<{LATE}Q", *[PAGE] * LATE))
        request = Reserve(next(self._numbers), SPACE, 0, 1, pages)
        answer = self.link.ask(request, PATIENCE_S)
        assert isinstance(answer, Reserved) and set(outcomes_of(answer)) == {ReserveOutcome.GRANTED}
        entries = answer_columns(answer.pages).entries
        self._late = [(number, entries[4 * at : 4 * at + 4]) for at, number in enumerate(late)]
        self.write(self._late[: LATE // 2])

    def write(self, pages: Sequence[tuple[int, bytes]]) -> None:
        """Writes bytes into reserved memory."""
        for number, entry in pages:
            write_page(self.session, entry, content_of(number))

    def write_late(self) -> None:
        """Writes into all of the reserved memory."""
        self.write(self._late)

    def wrong(self) -> int:
        """Returns how many of the held pages have other bytes than were stored."""
        assert len(self._pins) == HELD
        return self._wrong(self._pins, self._held)

    def _wrong(self, pins: Pins, numbers: Sequence[int]) -> int:
        out = np.zeros((len(pins), PAGE), np.uint8)
        addresses = (out.ctypes.data + PAGE * np.arange(len(pins))).astype("<u8")
        assert self.session.copy_out(pins, 0, addresses, np.full(len(pins), PAGE, "<u8"), 1) == len(pins)
        return sum(page.tobytes() != content_of(number) for page, number in zip(out, numbers, strict=False))

    def fill(self, first: int, pages: int) -> int:
        """Stores pages, so that all memory that is free is used, and returns what lost() does."""
        for start in range(first, first + pages, CHAIN):
            self.store(range(start, start + CHAIN))
        return self.lost(first, pages)

    def lost(self, first: int, pages: int) -> int:
        """Returns how many pages that are found have other bytes than were stored."""
        bad = 0
        for start in range(first, first + pages, CHAIN):
            numbers = range(start, start + CHAIN)
            with self.session.match(Pins, None, keys_of(numbers)) as pins:
                bad += self._wrong(pins, numbers) if len(pins) else 0
        return bad

    def attach_again(self) -> None:
        """Attaches to the next daemon, and keeps the segments that it has mapped."""
        session = self.session
        self.attach()
        assert self.session.slot == session.slot
        self.session = session


def obey(engine: HoldingEngine, words: Sequence[str]) -> object:
    """Does what a line says and returns what is printed."""
    match words:
        case ["hold" | "fill" | "lost" | "wrong" | "write_late" | "attach_again" as name, *numbers]:
            return getattr(engine, name)(*map(int, numbers))
        case ["close_all"]:
            os.closerange(3, 65536)
            return None
        case ["fork"]:
            child = os.fork()
            if not child:
                signal.pause()
            return child
        case ["vfork", folder]:
            threading.Thread(target=_vfork, args=(folder,), daemon=True).start()
            return None
        case ["exec", *command]:
            answer(None)
            os.execvp(command[0], command)
        case ["end_leader"]:
            threading.Thread(target=serve, args=(engine,)).start()
            answer(None)
            ctypes.CDLL(None).syscall(_EXIT_OF_A_THREAD, 0)
    raise AssertionError(words)


def _vfork(folder: str) -> None:
    """Starts a child that shares this process's memory until it has opened a pipe without a writer."""
    pipe = f"{folder}/never"
    os.mkfifo(pipe)
    libc, actions, child = ctypes.CDLL(None), ctypes.create_string_buffer(1024), ctypes.c_int()
    libc.posix_spawn_file_actions_init(actions)
    libc.posix_spawn_file_actions_addopen(actions, 0, pipe.encode(), os.O_RDONLY, 0)
    words = (ctypes.c_char_p * 2)(b"true", None)
    libc.posix_spawn(ctypes.byref(child), b"/bin/true", actions, None, words, None)  # without Python's lock


def answer(value: object) -> None:
    """Prints a line."""
    sys.stdout.write(f"{value}\n")
    sys.stdout.flush()


def serve(engine: HoldingEngine) -> None:
    """Obeys lines until the input ends."""
    for line in iter(sys.stdin.readline, ""):
        answer(obey(engine, line.split()))
    os._exit(0)


class _Daemon:
    def __init__(self, socket: Path) -> None:
        self.socket = socket


class EngineProcess:
    """Such an engine, run by a test. `before` is a command that runs it."""

    def __init__(self, socket: Path, *what: str, user: int = 0, before: Sequence[str] = ()) -> None:
        self._itself = [sys.executable, __file__, str(socket), str(user)]
        command = [*before, *within(*what), *self._itself]
        environ = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        self.outer = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ)
        self.pid = int(self._line())

    def do(self, *words: object) -> str:
        """Lets the engine do something and returns what it prints."""
        assert self.outer.stdin is not None
        self.outer.stdin.write(" ".join(map(str, words)) + "\n")
        self.outer.stdin.flush()
        return self._line()

    def exec_itself(self) -> int:
        """Lets the process execute its program again, which attaches as another session. Returns its PID."""
        self.do("exec", *self._itself)
        return int(self._line())

    def _line(self) -> str:
        assert self.outer.stdout is not None
        line = self.outer.stdout.readline()
        assert line, f"the engine has ended: {self.outer.wait()}"
        return line.strip()

    def kill(self) -> None:
        """Kills the engine."""
        self.outer.kill()
        for pipe in (self.outer.stdin, self.outer.stdout):
            assert pipe is not None
            pipe.close()
        self.outer.wait()


if __name__ == "__main__":
    if int(sys.argv[2]):
        os.setgroups([])
        os.setgid(int(sys.argv[2]))
        os.setuid(int(sys.argv[2]))
    one = HoldingEngine(_Daemon(Path(sys.argv[1])))  # type: ignore[arg-type]
    answer(os.getpid())
    serve(one)
