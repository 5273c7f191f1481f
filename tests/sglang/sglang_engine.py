"""Engines of the tests: one process for each rank, forked by a server that has imported SGLang."""

from __future__ import annotations

import logging
import multiprocessing
import os
import shutil
import sys
import tempfile
import traceback
from contextlib import suppress
from functools import cache
from multiprocessing.connection import Connection
from multiprocessing.forkserver import ensure_running
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from unittest.mock import patch

import pytest

from eventually import PATIENCE_S
from sglang_model import RankArguments, Spec, write_config

if shutil.which("g++") is None or not Path("/usr/include/openssl/sha.h").exists():
    pytest.skip("SGLang's hashes need g++ and the headers of libssl-dev", allow_module_level=True)

_context = multiprocessing.get_context("forkserver")


class SglangEngine:
    """The ranks of an engine. A method that is not defined here is called on all ranks, and returns their results.

    Args:
        spec: The model and the number of ranks.
        socket: The daemon's control socket.
        extra: Further settings of pagetier. Of `environment` the ranks have their environment variables, of
            `environments` single ranks by their number, of `flags` further settings of SGLang.
    """

    def __init__(self, spec: Spec, socket: Path, **extra: Any) -> None:
        _start_server()
        self.spec = spec
        self.folder = tempfile.TemporaryDirectory(prefix="pagetier-engine-")
        folder = Path(self.folder.name)
        model = write_config(folder / "model", spec)
        settings = {"socket": str(socket), "weights": "tiny", "flush": "keep", **extra}
        settings["environment"] = {"PAGETIER_COPY_CONFIG": str(_long_timeouts(folder)), **extra.get("environment", {})}
        self._ranks = []
        for rank in range(spec.processes):
            here, there = _context.Pipe()
            arguments = RankArguments(spec, rank, model, folder / "rendezvous", settings)
            process = _context.Process(target=_serve, args=(there, arguments, folder / f"log-{rank}"), daemon=True)
            process.start()
            there.close()
            self._ranks.append((process, here))
        try:
            self._answers()
        except (AssertionError, EOFError):
            self.close()
            raise

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> Any:
            return self.call(name, *arguments)

        return call

    def call(self, name: str, *arguments: Any) -> list[Any]:
        """Calls a method on all ranks, and returns the result of each."""
        self.send(name, *arguments)
        return self._answers()

    def send(self, name: str, *arguments: Any) -> None:
        """Calls a method on all ranks without waiting."""
        for _, pipe in self._ranks:
            pipe.send((name, arguments))

    @property
    def log(self) -> str:
        """What the ranks have logged."""
        return "".join(path.read_text() for path in sorted(Path(self.folder.name).glob("log-*")))

    @property
    def pids(self) -> list[int]:
        """The processes of the ranks."""
        return [process.pid or 0 for process, _ in self._ranks]

    def kill(self) -> None:
        """Kills all ranks."""
        for process, _ in self._ranks:
            process.kill()

    def close(self) -> None:
        """Stops all ranks."""
        with suppress(OSError):
            self.send("close")
            for _, pipe in self._ranks:
                pipe.poll(PATIENCE_S)
        for process, pipe in self._ranks:
            pipe.close()
            process.join(PATIENCE_S)
            process.kill()
            process.join()
        self.folder.cleanup()

    def _answers(self) -> list[Any]:
        answers = []
        for _, pipe in self._ranks:
            error, answer = pipe.recv()
            assert not error, f"{error}\n{self.log}"
            answers.append(answer)
        return answers

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            sys.stderr.write(self.log)
        self.close()


def _long_timeouts(folder: Path) -> Path:
    """Writes copy settings with which no page is rejected on a busy machine, and returns their path."""
    settings = folder / "copy.toml"
    settings.write_text('reserve_timeout = "5s"\nqueue_limit = "30s"\n')  # an offload may take 10 s in all
    return settings


@cache
def _start_server() -> None:
    """Starts the server that forks all ranks. It has the path of the tests, and imports SGLang once."""
    _context.set_forkserver_preload(["sglang_imports", "sglang_host_rank"])
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
    try:
        ensure_running()
    finally:
        os.environ.pop("PYTHONPATH") if before is None else os.environ.update(PYTHONPATH=before)


def _serve(pipe: Connection, arguments: RankArguments, log: Path) -> None:
    """Executes the commands of a test in the process of one rank."""
    logging.basicConfig(filename=log, level=logging.INFO, force=True)
    target: Any = None
    os.environ.update(arguments.extra.pop("environment", {}))
    os.environ.update(arguments.extra.pop("environments", {}).get(arguments.rank, {}))
    with suppress(EOFError, BrokenPipeError):
        while True:
            try:
                if target is None:
                    target = _target(arguments)
                    answer = None
                else:
                    name, values = pipe.recv()
                    answer = getattr(target, name)(*values)
            except EOFError:
                return
            except Exception:  # noqa: BLE001  the test reports it
                pipe.send((traceback.format_exc(), None))
                if target is None:
                    return
            else:
                pipe.send(("", answer))


def _wait_long(arguments: RankArguments) -> None:
    """Lets a rank wait long for a daemon that is there, because a busy machine may stop for seconds.

    Not one that changes SGLang: this imports what takes the version of it.
    """
    if Path(arguments.extra["socket"]).exists() and "change" not in arguments.extra:
        from pagetier.client.engines.sglang.engine import served_engine

        patch.object(served_engine, "_ATTACH_S", PATIENCE_S).start()


def _target(arguments: RankArguments) -> Any:
    """Returns what executes the commands. The process of the tests does not import SGLang."""
    _wait_long(arguments)
    match arguments.spec.layout:
        case "":
            from sglang_rank import Rank

            return Rank(arguments)
        case "kit":
            from sglang_kit import Kit

            return Kit(arguments)
        case _:
            from sglang_host_rank import HostRank

            return HostRank(arguments)
