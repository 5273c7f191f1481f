"""Runs `pagetier-bench replay`: traces of a chat service, the command, and observers of its daemons."""

from __future__ import annotations

import gzip
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from eventually import PATIENCE_S, eventually
from pagetier.shm._core import Observer
from pagetier.shm.daemon_link import Link
from pagetier.shm.protocol import BUILD, Observe
from pagetier.shm.segment_files import observe_and_close

BLOCK = 512
PAGE = 4096
# In the background of a shell, tests and their children ignore SIGINT.
_HEEDS_INT = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
COMMAND = [sys.executable, "-c", f"{_HEEDS_INT}; from pagetier.client.cli.replay import replay; replay()"]

Chain = list[int]


def chat(requests: int, seed: int) -> list[Chain]:
    """Returns prompts of a chat service: sessions that begin with one of three system prompts and grow."""
    dice = random.Random(seed)
    fresh = iter(range(10**9, 2 * 10**9))
    systems: list[Chain] = [[next(fresh) for _ in range(blocks)] for blocks in (1, 3, 5)]
    sessions: list[Chain] = []
    prompts: list[Chain] = []
    for _ in range(requests):
        going_on = sessions and dice.random() < 0.7
        start = sessions.pop(dice.randrange(max(0, len(sessions) - 12), len(sessions))) if going_on else None
        prompt = [*(start or dice.choice(systems)), *(next(fresh) for _ in range(dice.randrange(6)))]
        sessions.append(prompt)
        prompts.append(prompt)
    return prompts


def write_trace(path: Path, chains: list[Chain]) -> tuple[Path, int]:
    """Writes a trace in which every other prompt ends with a partial block.

    Returns:
        Its path and its number of tokens.
    """
    lines, tokens = [], 0
    for number, chain in enumerate(chains):
        rest = number % 2 * 77
        length = len(chain) * BLOCK + rest
        ids = [*chain, 5] if rest else chain
        lines.append(json.dumps({"timestamp": number, "input_length": length, "output_length": 1, "hash_ids": ids}))
        tokens += length
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    return path, tokens


def environ() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("PAGETIER_")}


def replay(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [*COMMAND, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, env=environ(), check=False)


def replay_json(*arguments: object) -> dict[str, Any]:
    done = replay(*arguments, "--json")
    assert done.returncode == 0, f"exit code {done.returncode}: {done.stderr}\n{done.stdout}"
    report: dict[str, Any] = json.loads(done.stdout)
    return report


@contextmanager
def replaying(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Yields the running command, and ends it with all of its processes."""
    command = [*COMMAND, *map(str, arguments), "--json"]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdout=pipe, stderr=pipe, text=True, env=environ(), start_new_session=True
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def report_of(process: subprocess.Popen[str]) -> dict[str, Any]:
    output, errors = process.communicate(timeout=PATIENCE_S)
    assert output, errors
    report: dict[str, Any] = json.loads(output)
    return report


@contextmanager
def observing(socket: Path) -> Iterator[Observer]:
    link = Link(socket, PATIENCE_S)
    with closing(link):
        yield observe_and_close(link.greet(Observe(BUILD), PATIENCE_S).descriptors)


def until(true: Callable[[], bool], process: subprocess.Popen[str] | None = None) -> None:
    """Waits until a condition becomes true while the process is alive."""

    def is_true() -> bool:
        is_alive = process is None or process.poll() is None
        result = true()
        assert result or process is None or is_alive, process.communicate()
        return result

    assert eventually(is_true)


def until_granted(pages: int, observer: Observer, process: subprocess.Popen[str]) -> None:
    until(lambda: observer.header().granted > pages, process)


def clients_of(observer: Observer) -> list[int]:
    return [slot.pid for slot in observer.attachments_with_pins()]


def assert_all_released(observer: Observer) -> None:
    """Asserts that the clients have no slot, pin or reservation in the index."""
    until(lambda: not observer.attachments_with_pins() and not observer.header().open_entries)
    header = observer.header()
    assert header.used_frames == header.pages
