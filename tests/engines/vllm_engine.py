"""Runs real vLLM engines for tests, each in processes of its own, forked by a fork server."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from select import select
from types import TracebackType
from typing import Any, Self

from eventually import PATIENCE_S, CoreWaits, eventually, eventually_with_cores
from process_states import children_of

USER_CACHE = Path(".cache/engines/user").resolve()
"""The user's cache folder of all engines."""

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "PYTHONHASHSEED": "0",
    "TORCHINDUCTOR_CACHE_DIR": str(USER_CACHE / "torchinductor"),  # not in the TMPDIR of each engine
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE": "1",  # else these layers keep the state of all tokens
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "INFO",
    "VLLM_NO_USAGE_STATS": "1",
    "OMP_NUM_THREADS": "1",
    "XDG_CACHE_HOME": str(USER_CACHE),
}

LONG_S = 30.0
"""The product's timeouts where none is tested: long for a busy machine, and over while a test still waits."""


def long_timeouts(folder: Path) -> Path:
    """Writes copy settings with long timeouts, so that no page is rejected on a busy machine.

    Returns:
        Their path.
    """
    settings = folder / "copy.toml"
    settings.write_text(f'reserve_timeout = "{LONG_S:g}s"\nqueue_limit = "{LONG_S:g}s"\n')
    return settings


class EngineEndedError(Exception):
    """The engine ended before its response. The message is the end of its log."""


class VllmEngine:
    """An engine that executes the commands of engine_commands.py. It starts in the background until ready() returns.

    Its output goes to `log`.

    Args:
        model: The folder of the model.
        socket: The daemon's control socket; None to run without pagetier.
        settings: "engine", "extra" and "transfer" of engine_commands.py; "environment" has environment variables.
    """

    def __init__(self, model: Path, socket: Path | None, **settings: Any) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="pagetier-engine-")
        self.log = Path(self.folder.name) / "log"
        # vLLM leaves its sockets, and the files by which its ranks find each other, where they are.
        own = dict.fromkeys(("TMPDIR", "VLLM_RPC_BASE_PATH"), self.folder.name)
        own["PAGETIER_COPY_CONFIG"] = str(long_timeouts(Path(self.folder.name)))
        environment = own | settings.pop("environment", {})
        theirs, self._commands = os.pipe()
        self._answers, answers = os.pipe()
        with self.log.open("wb") as log:
            self.pid = _fork_server().fork(environment, theirs, answers, log.fileno())
        os.close(theirs)
        os.close(answers)
        self._lines = os.fdopen(self._answers)
        self._is_ready = False
        self._send({"model": str(model), "socket": str(socket) if socket else None, **settings})

    def ready(self) -> Self:
        """Waits until the engine accepts commands."""
        if not self._is_ready:
            self._answer()
            self._is_ready = True
        return self

    def do(self, command: str, **arguments: Any) -> dict[str, Any]:
        """Executes one command and returns its response."""
        self.begin(command, **arguments)
        return self.end()

    def begin(self, command: str, **arguments: Any) -> None:
        """Sends a command. end() returns its response."""
        self.ready()
        self._send({"do": command, **arguments})

    def end(self) -> dict[str, Any]:
        """Returns the response to the command of begin()."""
        return self._answer()

    @property
    def answered(self) -> bool:
        """Returns whether end() returns at once."""
        return bool(select([self._answers], [], [], 0)[0])

    @property
    def attached(self) -> bool:
        """Returns whether its scheduler's half uses a daemon and all halves have mapped the memory, by its log."""
        log = self.log.read_text(errors="replace")
        states = re.findall("pagetier (attached|is not attached|lost its daemon)", log)
        halves = dict(re.findall(r"half (\w+) is (\w+)", log))
        return states[-1:] == ["attached"] and set(halves.values()) == {"ATTACHED"}

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stops all processes of the engine for the time of a block."""
        os.killpg(self.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.killpg(self.pid, signal.SIGCONT)

    def log_tail(self) -> str:
        """Returns the end of the engine's log."""
        return self.log.read_text(errors="replace")[-8000:]

    def stop(self) -> None:
        """Shuts down like a user's program, and checks that no process is left."""
        self.leave()
        waits = CoreWaits(self.pid, others=lambda: children_of(self.pid))
        hangs = not eventually_with_cores(lambda: not _is_alive(self.pid), PATIENCE_S, waits)
        _leaving.remove(self)
        self.kill()
        log = self.log_tail()
        self.folder.cleanup()
        assert not hangs, f"the engine does not end: {log}"

    def leave(self) -> None:
        """Begins to stop. This takes seconds of waiting; at most two engines stop at a time."""
        if self in _leaving:
            return
        self._close_commands()
        self._lines.close()  # an engine whose response is not read could not end
        _leaving.append(self)
        while len(_leaving) > 2:
            _leaving[0].stop()

    def kill(self) -> None:
        """Kills all processes of the engine at once."""
        self._close_commands()
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        assert eventually(lambda: not _is_alive(self.pid))

    def _close_commands(self) -> None:
        if self._commands >= 0:
            os.close(self._commands)
            self._commands = -1

    def _send(self, line: dict[str, Any]) -> None:
        left = json.dumps(line).encode() + b"\n"
        while left:
            left = left[os.write(self._commands, left) :]

    def _answer(self) -> dict[str, Any]:
        line = self._lines.readline()
        if not line:
            raise EngineEndedError(self.log_tail())
        answer: dict[str, Any] = json.loads(line)
        return answer

    def __enter__(self) -> Self:
        try:
            return self.ready()
        except BaseException:
            self.stop()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            sys.stderr.write(f"--- the engine's log\n{self.log_tail()}\n")
        self.leave()


_leaving: list[VllmEngine] = []


class _ForkServer:
    """The process that forks engines; see fork_server.py."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("fork_server.py"))],
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            env={**os.environ, **ENVIRONMENT, "NURSERY": str(theirs.fileno()), "LONG_S": str(LONG_S)},
        )
        theirs.close()

    def fork(self, environment: dict[str, str], *descriptors: int) -> int:
        """Returns the process ID of a new engine."""
        socket.send_fds(self._control, [json.dumps(environment).encode()], list(descriptors))
        pid = self._control.recv(64)
        assert pid, "the fork server cannot import vLLM"
        return int(pid)

    def close(self) -> None:
        """Ends the process."""
        self._control.close()
        self._process.wait()


@cache
def _fork_server() -> _ForkServer:
    return _ForkServer()


def close_engines() -> None:
    """Closes the fork server after the tests, when all engines have ended."""
    while _leaving:
        _leaving[0].stop()
    if _fork_server.cache_info().currsize:
        _fork_server().close()
        _fork_server.cache_clear()


def _is_alive(pid: int) -> bool:
    """Returns whether any process of the engine's session is alive."""
    try:
        os.killpg(pid, 0)
    except ProcessLookupError:
        return False
    return True
