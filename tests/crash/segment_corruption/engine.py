"""Engines that fill the segments before the damage, and read all of them afterwards."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from eventually import PATIENCE_S
from oracle.page_contents import content, wrong
from pagetier.client import Client, Keys
from running_daemon import namespace

SEED: Final = 8
PAGES: Final = 6
PROMPTS: Final = 28
HALF: Final = 10  # the prompts of the first half were stored before the older image was taken
SIZES: Final = (4096, 9000, 5000)


class Seen(msgspec.Struct):
    """The observations of an engine. `wrong` describes pages with other bytes; `findings` are the daemon's findings."""

    hits: int = 0
    misses: int = 0
    wrong: list[str] = []
    findings: list[str] = []
    stored: int = 0
    attached: bool = True


def keys_of(prompt: int) -> Keys:
    """Returns the keys of a prompt; prompts use three namespaces in turn."""
    return namespace(salt=f"damage {prompt % 3}").keys(range(prompt, prompt + 16 * PAGES))


def size_of(prompt: int) -> int:
    """Returns the bytes of the prompt's pages."""
    return SIZES[prompt % len(SIZES)]


def store(client: Client, prompt: int) -> int:
    """Stores a prompt and returns how many of its pages were stored."""
    keys, size = keys_of(prompt), size_of(prompt)
    return client.store(keys, [content(keys[page], SEED, size) for page in range(PAGES)]).stored


def fill(socket: Path, result: Path, begin: int, end: int) -> None:
    """Stores prompts, and dies with pins and with unwritten reservations."""
    client = Client(socket, timeout=PATIENCE_S)
    assert client.wait_attached(PATIENCE_S)
    for prompt in range(begin, end):
        store(client, prompt)
    held = [client.match(keys_of(end - 1)), client.match(keys_of(end - 2))]
    open_ = client.reserve(keys_of(1000 + begin), 4096)
    result.write_bytes(b"%d %d" % (sum(map(len, held)), len(open_.granted)))
    os.kill(os.getpid(), signal.SIGKILL)


def match_all(socket: Path, result: Path) -> None:
    """Writes a Seen as JSON: of all prompts page by page, and of some that were never stored."""
    seen = Seen()
    client = Client(socket, timeout=PATIENCE_S)
    seen.attached = client.wait_attached(PATIENCE_S)
    for prompt in (*range(PROMPTS), 1000, 1000 + HALF, 2000):
        for page in range(PAGES):
            _match_one(client, prompt, page, seen)
    seen.stored = store(client, 3000)
    result.write_bytes(msgspec.json.encode(seen))


def _match_one(client: Client, prompt: int, page: int, seen: Seen) -> None:
    keys = keys_of(prompt)
    with client.match(keys[page : page + 1]) as match:
        if not len(match):
            seen.misses += 1
            return
        seen.hits += 1
        out = np.zeros(int(match.page_sizes[0]) if int(match.page_sizes[0]) < 1 << 20 else 0, np.uint8)
        done = client.load(match, out) if len(out) else 0
    amiss = wrong(out, keys[page], SEED) if done else None
    if amiss is not None or (done and (len(out) != size_of(prompt) or prompt >= 1000)):
        seen.wrong.append(f"page {page} of prompt {prompt}, {len(out)} bytes: {amiss}")
