"""A wheel of pagetier in an environment of its own, and a daemon that runs from there."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import venv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

from bare_python import installed
from eventually import PATIENCE_S, eventually
from process_states import children_of

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/store_and_load.py"
LIMIT_S = 300


def run(*command: str | Path, cwd: Path, **environ: str) -> str:
    """Returns the output of a command, which has to succeed, without this process's settings of pagetier."""
    words = list(map(str, command))
    done = subprocess.run(
        words, cwd=cwd, env=_own() | environ, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def _own() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("PAGETIER_")}


def install_wheel(wheel: Path, folder: Path) -> Path:
    """Makes an environment with a wheel and its declared dependencies, and nothing else, and returns its folder."""
    venv.create(folder, with_pip=False)
    options = ("--isolated", "--quiet", "--disable-pip-version-check")
    pip = (sys.executable, "-m", "pip", *options, "--python", folder / "bin/python")
    run(*pip, "install", "--no-deps", "--no-index", wheel, cwd=folder)
    (site,) = folder.glob("lib/python*/site-packages")
    (ours,) = metadata.distributions(name="pagetier", path=[str(site)])
    for needed in installed(ours.requires or ()):
        link(needed, site)
    return folder


def link(of: metadata.Distribution, site: Path) -> None:
    """Makes an installed distribution importable from another environment."""
    tops = {file.parts[0] for file in of.files or () if file.parts[0] not in ("..", "__pycache__")}
    for top in tops:
        (site / top).symlink_to(Path(str(of.locate_file(top))).resolve())


@contextmanager
def serving(daemon: Sequence[str | Path], folder: Path, arena: str = "8MiB", **environ: str) -> Iterator[Path]:
    """Runs a command that starts `pagetierd`, yields its socket, and asserts that it stops and leaves no memory."""
    name, socket, log = f"pagetier-test-{secrets.token_hex(6)}", folder / "pagetier.sock", folder / "log"
    arguments = ["--name", name, "--socket", socket, "--arena-size", arena, "--set", "arena.frame_size=64KiB"]
    with log.open("wb") as file:
        process = subprocess.Popen(list(map(str, [*daemon, *arguments])), stderr=file, env=_own() | environ)
    try:
        eventually(lambda: "event=ready" in log.read_text() or process.poll() is not None)
        assert "event=ready" in log.read_text(), log.read_text()
        yield socket
        os.kill(_innermost(process.pid), signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0, log.read_text()
        assert list(Path("/dev/shm").glob(f"{name}.*")) == []
    finally:
        if process.poll() is None:
            os.kill(_innermost(process.pid), signal.SIGKILL)
        process.wait()
        for segment in Path("/dev/shm").glob(f"{name}.*"):
            segment.unlink()


def _innermost(pid: int) -> int:
    """Returns the daemon in a chain of wrappers such as a container's; below it are its disk workers."""
    if Path(f"/proc/{pid}/comm").read_text() == "pagetierd\n":
        return pid
    children = children_of(pid)
    return _innermost(children[0]) if children else pid


def store_and_load(python: Sequence[str | Path], socket: Path, **environ: str) -> str:
    """Stores four pages by one client of a daemon and loads them by another; returns what the example prints."""
    return run(*python, EXAMPLE, cwd=socket.parent, PAGETIER_SOCKET=str(socket), **environ)
