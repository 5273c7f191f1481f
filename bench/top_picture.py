"""`python bench/top_picture.py` draws docs/top.svg: what `pagetier top` shows of a daemon that really works.

Two engines store and match prompts that begin alike for half a minute, on a daemon with a small arena and a disk.
"""

from __future__ import annotations

import io
import random
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from rich.console import Console

from pagetier.client import Client, Namespace
from pagetier.daemon.cli.reach import daemon_at
from pagetier.daemon.cli.top_history import History, Moment
from pagetier.daemon.cli.top_screen import UNICODE, WIDTH, Place, screen
from pagetier.daemon.stats import take_snapshot

sys.path.insert(0, str(Path(__file__).parents[1] / "tests/support"))
from with_disk import running_with_disk

PICTURE = Path(__file__).parents[1] / "docs/top.svg"
SHOWN_AS = Path("/run/pagetier/pagetier.sock")
SECONDS, LINES = 40.0, 22
PAGE, TOKENS, PROMPTS, PAGES = 60_000, 256, 90, 12
ENGINES = ("vllm worker 0", "vllm worker 1")


def work(client: Client, seed: int, over: threading.Event) -> None:
    """An engine: some prompts come again and again, others once."""
    dice, space = random.Random(seed), Namespace(model="example/model-8b", dtype="bfloat16", page_tokens=TOKENS)
    into = np.zeros((PAGES, PAGE), dtype=np.uint8)
    while not over.wait(0.004):
        prompt = min(int(dice.expovariate(1 / 8)), PROMPTS)
        keys = space.keys(range(prompt << 16, (prompt << 16) + TOKENS * PAGES))
        with client.match(keys) as match:
            client.load(match, into, deadline=0.05)
            found = len(match)
        if found < PAGES:
            client.store(keys, into)


def watched(socket: Path) -> History:
    """As `pagetier top` watches; an hour's worth of minutes is not needed for a picture, so its clock runs faster."""
    history, began = History(), time.monotonic()
    with daemon_at(socket) as daemon:
        while (past := time.monotonic() - began) < SECONDS:
            history.add(Moment(past, take_snapshot(daemon.observer)))
            time.sleep(0.5)
    return history


def draw(history: History) -> None:
    """As an SVG."""
    console = Console(record=True, width=WIDTH, height=LINES, file=io.StringIO(), color_system="truecolor")
    console.print(screen(history, Place(SHOWN_AS, LINES, UNICODE)))
    console.save_svg(str(PICTURE), title="pagetier top", unique_id="pagetier-top")


def main() -> None:
    """Runs it."""
    over = threading.Event()
    with tempfile.TemporaryDirectory() as folder, running_with_disk(Path(folder)) as daemon:
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
