"""Debian's packages unpacked into a folder, for any architecture, and wheels for the Python among them.

apt keeps its lists and downloads in a folder of the test: the packages of this host stay as they are.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

DEBIAN = {"x86_64": "amd64", "aarch64": "arm64"}
CONSTRAINTS = Path(__file__).resolve().parents[2] / "constraints.txt"


def unpack_packages(folder: Path, architecture: str, names: Sequence[str]) -> Path:
    """Downloads packages with all that they depend on, and returns a folder with their files, none of them set up."""
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        pytest.skip("this is no Debian")
    for name in ("state/lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True)
    (folder / "status").touch()  # nothing is installed
    of = DEBIAN[architecture]
    options = [f"APT::Architecture={of}", f"APT::Architectures={of}", "APT::Sandbox::User="]
    options += [f"Dir::State={folder}/state", f"Dir::State::status={folder}/status", f"Dir::Cache={folder}/cache"]
    apt = ["apt-get", "-qq", *(f"--option={option}" for option in options)]
    for words in (["update"], ["install", "--yes", "--download-only", "--no-install-recommends", *names]):
        if subprocess.run([*apt, *words], check=False).returncode:
            pytest.skip(f"apt-get {words[0]} finds no packages for {of}")
    for package in (folder / "cache/archives").glob("*.deb"):
        subprocess.run(["dpkg-deb", "--extract", str(package), str(folder / "root")], check=True)
    return folder / "root"


def python_in(root: Path) -> Path:
    """Returns the interpreter among unpacked packages."""
    (python,) = root.glob("usr/bin/python3.[0-9]*")
    return python


def pip(*words: str | Path, python: Path, architecture: str) -> None:
    """Runs pip for another Python, which has the versions of constraints.txt and builds nothing."""
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *map(str, words)]
    command += ["--only-binary", ":all:", "--constraint", str(CONSTRAINTS)]
    command += ["--implementation", "cp", "--python-version", python.name.removeprefix("python")]
    # pip does not conclude that wheels for an older glibc fit too.
    platforms = ["manylinux2014", *(f"manylinux_2_{minor}" for minor in range(36, 16, -1))]
    subprocess.run([*command, *(f"--platform={name}_{architecture}" for name in platforms)], check=True)
