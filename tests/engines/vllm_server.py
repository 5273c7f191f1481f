"""Runs `vllm serve` as the README does."""

from __future__ import annotations

import http.client
import json
import math
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from eventually import eventually
from free_ports import free_ports
from one_host import Scene
from vllm_engine import ENVIRONMENT, long_timeouts

README = Path(__file__).parents[2] / "README.md"


def readme_command(model: Path) -> list[str]:
    """Returns the README's command for a model, with the program of this environment and without its variable."""
    (command,) = re.findall(r"^PAGETIER=1 (vllm serve MODEL.*)$", README.read_text(), re.MULTILINE)
    program, *arguments = shlex.split(command, comments=True)
    return [str(Path(sys.executable).with_name(program)), *(str(model) if it == "MODEL" else it for it in arguments)]


class Server:
    """`vllm serve` with the README's arguments and `more`, and its HTTP client."""

    def __init__(self, scene: Scene, folder: Path, *more: str) -> None:
        self.log = folder / "log"
        (self.port,) = free_ports(1)
        command = [*readme_command(scene.model), *more, "--enforce-eager"]
        command += ["--served-model-name", "tiny", "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--dtype", "bfloat16", "--max-model-len", "4096"]
        environment = os.environ | ENVIRONMENT
        environment["PAGETIER_COPY_CONFIG"] = str(long_timeouts(folder))
        environment |= {"PAGETIER": "1", "PAGETIER_SOCKET": str(scene.daemon.socket)}
        environment["VLLM_SERVER_DEV_MODE"] = "1"  # enables the request that empties its own cache
        environment |= dict.fromkeys(("TMPDIR", "VLLM_RPC_BASE_PATH"), str(folder))  # vLLM leaves files there
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)

    def wait(self) -> None:
        """Waits until the server is healthy."""
        is_decided = eventually(lambda: self._is_healthy() or self.process.poll() is not None, math.inf)
        assert is_decided and self.process.poll() is None, self.log_tail()

    def log_tail(self) -> str:
        """Returns the end of its log."""
        return self.log.read_text(errors="replace")[-8000:]

    def post(self, path: str, body: dict[str, Any] | None = None, **headers: str) -> Any:
        """Returns the response to a POST request."""
        connection = self.send(path, body, **headers)
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        assert answer.status == 200, text
        return json.loads(text) if text else None

    def send(self, path: str, body: dict[str, Any] | None = None, **headers: str) -> http.client.HTTPConnection:
        """Sends a POST request and does not wait for the response."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request("POST", path, json.dumps(body or {}), {"Content-Type": "application/json", **named})
        return connection

    def counter(self, name: str, engine: str = "") -> int:
        """Returns a counter of its /metrics, of one engine or the sum of all engines."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        connection.request("GET", "/metrics")
        lines = connection.getresponse().read().decode().splitlines()
        connection.close()
        found = [line for line in lines if line.startswith((name + "{", name + "_total{"))]
        found = [line for line in found if f'engine="{engine}' in line]
        assert found, [line for line in lines if "pagetier" in line or "external" in line]
        return int(sum(float(line.rsplit(" ", 1)[1]) for line in found))

    def stop(self) -> None:
        """Stops the server like Ctrl-C, and checks that no process is left."""
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def _is_healthy(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()


@contextmanager
def serving(scene: Scene, *more: str) -> Iterator[Server]:
    """Yields a server that is healthy."""
    with tempfile.TemporaryDirectory(prefix="pagetier-server-") as folder:
        there = Server(scene, Path(folder), *more)
        try:
            there.wait()
            yield there
        finally:
            there.stop()
