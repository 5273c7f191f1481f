"""Debian's Python for aarch64, run by QEMU's emulation of one process.

QEMU on x86-64 does not reorder memory as a real aarch64 does, so this proves nothing about barriers.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from other_pythons import pip, python_in, unpack_packages

PACKAGES = ("libpython3-stdlib", "libstdc++6", "python3-minimal")


class EmulatedPython:
    """Runs programs as a CPython for aarch64 does; `site` is the folder of its packages."""

    def __init__(self, folder: Path) -> None:
        qemu = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
        if not qemu:
            pytest.skip("there is no qemu-aarch64-static")
        root = unpack_packages(folder / "debian", "aarch64", PACKAGES)
        self._python = python_in(root)
        self.site = folder / "site"
        self.command = [qemu, "-L", str(root), str(self._python)]
        self.environment = {"PYTHONPATH": str(self.site), "PYTHONDONTWRITEBYTECODE": "1"}

    def install(self, wheel: Path) -> None:
        """Installs a wheel, and from the package index what it requires."""
        pip("install", "--target", self.site, wheel, python=self._python, architecture="aarch64")
