"""A program like `vllm serve` without a model: it answers by arithmetic, and caches the beginnings of prompts.

Alone it remembers the last four prompts. With PAGETIER=1 it attaches to the daemon as the two halves of an engine do,
and remembers all of them. Its own arguments: `--ends` ends it at once, `--never-ready` keeps it from being healthy,
`--odd` makes answers with pagetier differ, as threads that are bound to cores do, `--no-cache-size` leaves the size of
its cache out of its metrics, `--orderly PREFIX` and `--stubborn PREFIX` start a process that has a file in /dev/shm and
outlives it,
`--slow-end PREFIX` makes it wait for SIGTERM after SIGINT, and have a file there while it does.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from pagetier.client import Client

LONGEST = 4096
CACHE_TOKENS = 1600
BINDS_THREADS = os.environ.get("VLLM_CPU_OMP_THREADS_BIND") != "nobind"
WITH_PAGETIER = os.environ.get("PAGETIER") == "1"
# The stubborn one ignores all signals but SIGKILL: Python's resource tracker removes its segment after it. The other
# removes its own file when it is asked to stop.
_STUBBORN = """
import signal, sys, time
from multiprocessing.shared_memory import SharedMemory
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
segment = SharedMemory(sys.argv[1] + "stubborn", create=True, size=1)
time.sleep(600)
"""
_ORDERLY = """
import signal, sys, time
from pathlib import Path
file = Path("/dev/shm", sys.argv[1] + "orderly")
signal.signal(signal.SIGTERM, lambda *_: (file.unlink(), sys.exit()))
file.touch()
time.sleep(600)
"""
_seen: deque[list[int]] = deque(maxlen=None if WITH_PAGETIER else 4)


def hit_tokens(prompt: list[int]) -> int:
    return max((_common_length(prompt, seen) for seen in _seen), default=0)


def _common_length(left: list[int], right: list[int]) -> int:
    pairs = enumerate(zip(left, right, strict=False))
    return next((at for at, (one, other) in pairs if one != other), min(len(left), len(right)))


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        pages: dict[str, Any] = {
            "/v1/models": {"data": [{"id": "fake", "max_model_len": LONGEST}]},
            "/metrics": None,
            "/health": {},
        }
        self._begin(503 if "--never-ready" in sys.argv and self.path == "/health" else 200)
        name = "other" if "--no-cache-size" in sys.argv else "vllm:cache_config_info"
        config = f'{name}{{block_size="16",engine="0",num_gpu_blocks="{CACHE_TOKENS // 16}"}} 1.0\n'
        self.wfile.write(json.dumps(pages[self.path]).encode() if pages[self.path] is not None else config.encode())

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        prompt, count = body["prompt"], body["max_tokens"]
        hits = hit_tokens(prompt)
        _seen.append(prompt)
        odd = WITH_PAGETIER and ("--odd" in sys.argv or BINDS_THREADS)
        self._begin(200)
        for number in range(count):
            self._event({"choices": [{"text": "x", "token_ids": [sum(prompt) + number + odd]}]})
        usage = {"prompt_tokens": len(prompt), "completion_tokens": count}
        self._event({"choices": [], "usage": usage | {"prompt_tokens_details": {"cached_tokens": hits}}})
        self.wfile.write(b"data: [DONE]\n\n")

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing."""

    def _begin(self, status: int) -> None:
        self.send_response(status)
        self.end_headers()

    def _event(self, content: dict[str, Any]) -> None:
        self.wfile.write(b"data: " + json.dumps(content).encode() + b"\n\n")


# As vLLM reports an error of its engine: its server ends after it, with an error that does not say why.
_FAILED = (
    """(EngineCore pid=7) ERROR 11-30 02:58:00 [core.py:700] Traceback (most recent call last):
(EngineCore pid=7) ERROR 11-30 02:58:00 [core.py:700] ValueError: this model does not exist
(EngineCore pid=7) ValueError: this model does not exist
"""
    + "(APIServer pid=5)   File ...\n" * 20
    + "(APIServer pid=5) RuntimeError: Engine core initialization failed"
)


def _end_slowly(asked: Path) -> None:
    def leave(*_: object) -> None:
        asked.unlink()
        os._exit(0)

    signal.signal(signal.SIGINT, lambda *_: asked.touch())
    signal.signal(signal.SIGTERM, leave)


def _argument(option: str) -> str:
    return sys.argv[sys.argv.index(option) + 1]


def main() -> None:
    if "--ends" in sys.argv:
        sys.exit(_FAILED)
    if "--slow-end" in sys.argv:
        _end_slowly(Path("/dev/shm", _argument("--slow-end") + "asked"))
    for option, child in (("--stubborn", _STUBBORN), ("--orderly", _ORDERLY)):
        if option in sys.argv:
            subprocess.Popen([sys.executable, "-c", child, _argument(option)])
    port = int(_argument("--port"))
    with contextlib.ExitStack() as stack:
        if WITH_PAGETIER:
            for half in ("scheduler", "worker"):
                client = stack.enter_context(Client(Path(os.environ["PAGETIER_SOCKET"]), name=half))
                assert client.wait_attached(60)
        server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()


if __name__ == "__main__":
    main()
