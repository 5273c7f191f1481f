"""`python bench/top_picture.py` draws docs/top.svg: `pagetier top` of a working daemon.

Two engines match, load and store prompts for some minutes, on a daemon with a small arena and a small disk.
"""

from __future__ import annotations

import io
import random
import re
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from rich.console import Console

from pagetier.client import Client, Namespace
from pagetier.daemon.cli.daemon_connection import daemon_at
from pagetier.daemon.cli.top.history import History, Moment
from pagetier.daemon.cli.top.screen import UNICODE, WIDTH, ScreenContext, screen
from pagetier.daemon.stats.snapshot_reader import take_snapshot

sys.path.insert(0, str(Path(__file__).parents[1] / "tests/harness"))
from eventually import eventually
from running_daemon import RunningDaemon

PICTURE = Path(__file__).parents[1] / "docs/top.svg"
SHOWN_AS = Path("/run/pagetier/pagetier.sock")
SECONDS, LINES = 150.0, 22
PAGE, TOKENS, PROMPTS, PAGES = 250_000, 256, 1000, 12
ENGINES = ("vllm worker 0", "vllm worker 1")


def work(client: Client, seed: int, over: threading.Event) -> None:
    """Acts like an engine: some prompts are repeated, others occur once, and they become more alike with time."""
    dice, space = random.Random(seed), Namespace(model="example/model-8b", dtype="bfloat16", page_tokens=TOKENS)
    out = np.zeros((PAGES, PAGE), dtype=np.uint8)
    began = time.monotonic()
    while not over.wait(0.02):
        alike = 120 - 60 * (time.monotonic() - began) / SECONDS
        prompt = min(int(dice.expovariate(1 / alike)), PROMPTS)
        keys = space.keys(range(prompt << 16, (prompt << 16) + TOKENS * PAGES))
        with client.match(keys) as match:
            client.load(match, out, timeout=0.05)
            found = len(match)
        if found < PAGES:
            client.store(keys, out)


def daemon_on(folder: Path) -> RunningDaemon:
    """Starts a daemon whose arena and disk are both too small for everything."""
    disk = ("--disk-path", str(folder), "--disk-size", "640MiB")
    return RunningDaemon("192MiB", "64KiB", *disk)


def watched(socket: Path) -> History:
    """Records the history that `pagetier top` shows."""
    history, began = History(), time.monotonic()
    with daemon_at(socket) as daemon:
        while (past := time.monotonic() - began) < SECONDS:
            history.add(Moment(past, take_snapshot(daemon.observer)))
            time.sleep(1.0)
    return history


def draw(history: History) -> None:
    """Draws the history as an SVG."""
    console = Console(record=True, width=WIDTH, height=LINES, file=io.StringIO(), color_system="truecolor")
    console.print(screen(history, ScreenContext(SHOWN_AS, LINES, UNICODE)))
    svg = console.export_svg(title="pagetier top", unique_id="pagetier-top")
    # Pages that embed the picture must not fetch fonts.
    PICTURE.write_text(re.sub(r"\s*@font-face \{.*?\}", "", svg, flags=re.DOTALL))


def main() -> None:
    """Runs the engines and draws the picture."""
    over = threading.Event()
    with tempfile.TemporaryDirectory() as folder, daemon_on(Path(folder)) as daemon:
        assert eventually(daemon.disk_is_open, 20.0)
        clients = [daemon.client(name=name) for name in ENGINES]
        threads = [threading.Thread(target=work, args=(client, seed, over)) for seed, client in enumerate(clients)]
        for thread in threads:
            thread.start()
        history = watched(daemon.socket)
        over.set()
        for thread in threads:
            thread.join()
        for client in clients:
            client.close()
    draw(history)
    print(PICTURE)


if __name__ == "__main__":
    main()
