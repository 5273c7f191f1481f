"""Engines for tests: real vLLM, each in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "PYTHONHASHSEED": "0",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "INFO",
    "VLLM_NO_USAGE_STATS": "1",
    "OMP_NUM_THREADS": "2",
}


class VllmEngine:
    """See engine.py. What it writes goes to `log`."""

    def __init__(self, model: Path, socket: Path | None, **settings: Any) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="pagetier-engine-")
        self.log = Path(self.folder.name) / "log"
        self._settings = {"model": str(model), "socket": str(socket) if socket else None, **settings}
        self._answers, theirs = os.pipe()
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("engine.py"))],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=[theirs],
                env={**os.environ, **ENVIRONMENT, "ENGINE_ANSWERS": str(theirs)},
                start_new_session=True,
            )
        os.close(theirs)
        self._lines = os.fdopen(self._answers)
        self._send(self._settings)

    def ready(self) -> Self:
        """Waits until the engine takes commands."""
        self._answer()
        return self

    def do(self, command: str, **arguments: Any) -> dict[str, Any]:
        """One command, and its answer."""
        self.begin(command, **arguments)
        return self._answer()

    def begin(self, command: str, **arguments: Any) -> None:
        """A command whose answer is fetched by end()."""
        self._send({"do": command, **arguments})

    def end(self) -> dict[str, Any]:
        """The answer to what was begun."""
        return self._answer()

    def stop(self) -> None:
        """As a user's program ends: nothing of it is left."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        self.process.wait(60)
        self._lines.close()
        self.folder.cleanup()

    def _send(self, line: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(line).encode() + b"\n")
        self.process.stdin.flush()

    def _answer(self) -> dict[str, Any]:
        line = self._lines.readline()
        assert line, f"the engine ended: {self.log.read_text()[-6000:]}"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def __enter__(self) -> Self:
        return self.ready()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
