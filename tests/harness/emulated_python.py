"""Debian's Python for aarch64, unpacked into a folder and run by QEMU's emulation of one process.

apt keeps its lists and packages for the other architecture in the folder too: the packages of this host stay as they
are. QEMU on x86-64 does not reorder memory as a real aarch64 does, so this proves nothing about barriers.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGES = ("libpython3-stdlib", "libstdc++6", "python3-minimal")
CONSTRAINTS = Path(__file__).resolve().parents[2] / "constraints.txt"
# pip does not conclude that wheels for an older glibc fit too.
PLATFORMS = [f"manylinux_2_{minor}_aarch64" for minor in range(36, 16, -1)] + ["manylinux2014_aarch64"]


class EmulatedPython:
    """Runs programs as a CPython for aarch64 does; `site` is the folder of its packages."""

    def __init__(self, folder: Path) -> None:
        qemu = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
        if not (qemu and shutil.which("apt-get") and shutil.which("dpkg-deb")):
            pytest.skip("no qemu-user-static, or no Debian")
        self.site, root = folder / "site", folder / "root"
        unpack_packages(folder / "apt", root)
        (python,) = root.glob("usr/bin/python3.[0-9]*")
        self.version = python.name.removeprefix("python")
        self.command = [qemu, "-L", str(root), str(python)]
        self.environment = {"PYTHONPATH": str(self.site), "PYTHONDONTWRITEBYTECODE": "1"}

    def install(self, wheel: Path) -> None:
        """Installs a wheel, and from the package index what it requires, in the versions of constraints.txt."""
        command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
        command += ["--target", str(self.site), "--only-binary", ":all:", "--constraint", str(CONSTRAINTS)]
        command += ["--implementation", "cp", "--python-version", self.version]
        subprocess.run([*command, *(f"--platform={name}" for name in PLATFORMS), str(wheel)], check=True)


def unpack_packages(work: Path, root: Path) -> None:
    """Downloads PACKAGES for aarch64, with all that they depend on, and unpacks them into a folder."""
    for name in ("state/lists/partial", "cache/archives/partial"):
        (work / name).mkdir(parents=True)
    (work / "status").touch()  # nothing is installed
    options = ["APT::Architecture=arm64", "APT::Architectures=arm64", f"Dir::State={work / 'state'}"]
    options += [f"Dir::State::status={work / 'status'}", f"Dir::Cache={work / 'cache'}", "APT::Sandbox::User="]
    apt = ["apt-get", "-qq", *(f"--option={option}" for option in options)]
    for words in (["update"], ["install", "--yes", "--download-only", "--no-install-recommends", *PACKAGES]):
        if subprocess.run([*apt, *words], check=False).returncode:
            pytest.skip(f"apt-get {words[0]} finds no packages for arm64")
    for package in (work / "cache/archives").glob("*.deb"):
        subprocess.run(["dpkg-deb", "--extract", str(package), str(root)], check=True)
