"""Draws docs/page.png: the page of a working daemon, in a headless Chromium.

`PYTHONPATH=tests/harness:bench python tests/daemon/http/page_picture.py` runs it, with the environment of the tests.
Two engines match, load and store prompts for two minutes, on a daemon with a small arena, a small disk and a fleet.
"""

from __future__ import annotations

import json
import os
import tempfile
import threading
from pathlib import Path

from chromium import chromium
from eventually import eventually
from free_ports import free_ports
from pagetier.client import Client
from running_daemon import RunningDaemon
from top_picture import ENGINES, work

PICTURE = Path(__file__).parents[3] / "docs/page.png"
TOKEN = "the-token-of-the-picture"
SECONDS, WIDTH = 110.0, 1360
RENAME = """(names) => {
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode())
    for (const [name, shown] of names) texts.currentNode.data = texts.currentNode.data.replaceAll(name, shown);
}"""


def daemon_on(folder: Path, port: int) -> RunningDaemon:
    """Starts a daemon whose arena and disk are both too small for everything."""
    (folder / "fleet").mkdir()
    (token := folder / "token").write_text(TOKEN)
    token.chmod(0o600)
    disk = ("--disk-path", str(folder / "disk"), "--disk-size", "640MiB", "--disk-budget", "20GiB")
    http = ("--http-listen", str(port), "--http-token-file", str(token))
    return RunningDaemon("192MiB", "64KiB", *disk, *http, "--remote-url", f"file://{folder}/fleet")


def draw(port: int, names: dict[str, str]) -> None:
    """Saves what a browser shows.

    Args:
        port: The daemon's.
        names: What is shown instead of the names of this host.
    """
    with chromium() as tab:
        tab.show(WIDTH, "light")
        tab.open(f"http://127.0.0.1:{port}/", "anyone", TOKEN)
        tab.evaluate(f"({RENAME})({json.dumps(list(names.items()))})")
        PICTURE.write_bytes(tab.screenshot())


def work_of(clients: list[Client], over: threading.Event) -> list[threading.Thread]:
    """Starts the engines."""
    threads = [threading.Thread(target=work, args=(client, seed, over)) for seed, client in enumerate(clients)]
    for thread in threads:
        thread.start()
    return threads


def main() -> None:
    """Runs the engines and draws the picture."""
    over, (port,) = threading.Event(), free_ports(1)
    with tempfile.TemporaryDirectory() as folder, daemon_on(Path(folder), port) as daemon:
        assert eventually(daemon.disk_is_open, 20.0)
        clients = [daemon.client(name=name) for name in ENGINES]
        threads = work_of(clients, over)
        over.wait(SECONDS)
        names = {folder: "/srv/pagetier", daemon.folder.name: "/run/pagetier"}
        names[f"pagetier on {os.uname().nodename}"] = "pagetier on gpu-host-1"
        draw(port, names)
        over.set()
        for thread in threads:
            thread.join()
        for client in clients:
            client.close()


if __name__ == "__main__":
    main()
