"""Draws the pictures of `pagetier top` and of the page at `/`: `make pictures TRACE=conversation.jsonl.gz`.

`pagetier-bench replay` replays a trace for 15 minutes on a daemon with a small arena, a small disk, a write budget and
a fleet in a folder. A headless Chromium draws the page, and pngquant makes the files small.
"""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from msgspec.structs import replace
from rich.console import Console

from pagetier.daemon.cli.daemon_connection import daemon_at
from pagetier.daemon.cli.top.history import History, Moment
from pagetier.daemon.cli.top.screen import UNICODE, WIDTH, ScreenContext, screen
from pagetier.daemon.stats.snapshot_reader import take_snapshot

sys.path.insert(0, str(Path(__file__).parents[1] / "tests/harness"))
from chromium import Tab, chromium
from eventually import eventually
from free_ports import free_ports
from running_daemon import RunningDaemon

DOCS: Final = Path(__file__).parents[1] / "docs"
SHOWN_AS: Final = Path("/run/pagetier/pagetier.sock")
HOST, PAGE, DATA = "gpu-host-1", "http://127.0.0.1:9470/", "/srv/pagetier"
TOKEN: Final = "the-token-of-the-pictures"
SECONDS, LINES, COLORS = 880.0, 24, 32
REPLAY: Final = ("--clients", "2", "--page-bytes", "32768", "--pace", "10")
RENAME: Final = """(names) => {
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode())
    for (const [name, shown] of names) texts.currentNode.data = texts.currentNode.data.replaceAll(name, shown);
}"""
END_OF_CARDS: Final = "document.querySelector('section.wide').getBoundingClientRect().top"


class Picture(NamedTuple):
    """A picture of the page.

    Attributes:
        name: Its file in docs.
        width: Of the screen.
        scheme: "light" or "dark".
        wide: Whether the tables and events below the cards are in it.
    """

    name: str
    width: int
    scheme: str
    wide: bool


PICTURES: Final = (
    Picture("page-cards.png", 1360, "light", wide=False),
    Picture("page.png", 1360, "light", wide=True),
    Picture("page-dark.png", 1600, "dark", wide=True),
    Picture("page-phone.png", 400, "dark", wide=False),
)


@contextmanager
def working_daemon(trace: Path, folder: Path, port: int) -> Iterator[RunningDaemon]:
    """Yields a daemon whose arena and disk are both too small for the trace that two processes replay.

    Args:
        trace: The file.
        folder: For the daemon's files.
        port: Where the page is served.
    """
    (folder / "fleet").mkdir()
    (token := folder / "token").write_text(TOKEN)
    token.chmod(0o600)
    disk = ("--disk-path", str(folder / "disk"), "--disk-size", "2GiB", "--set", "disk.budget=50GiB")
    http = ("--set", f"http.listen={port}", "--set", f"http.token_file={token}")
    fleet = ("--set", f"remote.url=file://{folder}/fleet")
    with RunningDaemon("512MiB", "32KiB", *disk, *http, *fleet) as daemon:
        assert eventually(daemon.disk_is_open, 20.0)
        with replayed(trace, daemon.socket):
            yield daemon


@contextmanager
def replayed(trace: Path, socket: Path) -> Iterator[None]:
    """Replays the trace while its body runs."""
    command = (
        str(Path(sys.executable).with_name("pagetier-bench")),
        "replay",
        str(trace),
        "--live",
        "--socket",
        str(socket),
    )
    with subprocess.Popen((*command, *REPLAY), start_new_session=True) as replay:
        try:
            yield
            assert replay.poll() is None, "the trace is too short"
        finally:
            os.killpg(replay.pid, signal.SIGTERM)


def watched(socket: Path) -> History:
    """Records the history that `pagetier top` shows."""
    history, began = History(), time.monotonic()
    with daemon_at(socket) as daemon:
        while (past := time.monotonic() - began) < SECONDS:
            snapshot = take_snapshot(daemon.observer)
            shown = replace(snapshot, fleet=replace(snapshot.fleet, url=f"file://{DATA}/fleet"))
            history.add(Moment(past, shown))
            time.sleep(1.0)
    return history


def draw_top(history: History) -> None:
    """Draws the terminal as an SVG."""
    console = Console(record=True, width=WIDTH, height=LINES, file=io.StringIO(), color_system="truecolor")
    console.print(screen(history, ScreenContext(SHOWN_AS, LINES, UNICODE, page=PAGE)))
    svg = console.export_svg(title="pagetier top", unique_id="pagetier-top")
    # Pages that embed the picture must not fetch fonts.
    (DOCS / "top.svg").write_text(re.sub(r"\s*@font-face \{.*?\}", "", svg, flags=re.DOTALL))


def draw_page(port: int, names: dict[str, str]) -> None:
    """Draws the page in a browser.

    Args:
        port: Where the page is served.
        names: What is shown instead of the names of this machine.
    """
    with chromium() as tab:
        for picture in PICTURES:
            tab.show(picture.width, picture.scheme)
            tab.open(f"http://127.0.0.1:{port}/", "anyone", TOKEN)
            tab.evaluate(f"({RENAME})({json.dumps(list(names.items()))})")
            save(tab, picture)


def save(tab: Tab, picture: Picture) -> None:
    """Writes the picture with few colors."""
    height = None if picture.wide else tab.evaluate(END_OF_CARDS)
    command = ("pngquant", str(COLORS), "--strip", "--speed", "1", "-")
    small = subprocess.run(command, input=tab.screenshot(height), stdout=subprocess.PIPE, check=True).stdout
    (DOCS / picture.name).write_bytes(small)


def main() -> None:
    """Replays the trace and draws."""
    (port,) = free_ports(1)
    with tempfile.TemporaryDirectory() as folder, working_daemon(Path(sys.argv[1]), Path(folder), port) as daemon:
        draw_top(watched(daemon.socket))
        daemon_folder = str(daemon.socket.parent)
        draw_page(port, {folder: DATA, daemon_folder: str(SHOWN_AS.parent), os.uname().nodename: HOST})


if __name__ == "__main__":
    main()
