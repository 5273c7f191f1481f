"""File systems that a test fills."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_file_system(size: str) -> Iterator[Path]:
    """Yields a tmpfs of this size."""
    with tempfile.TemporaryDirectory(prefix="pagetier-test-") as folder:
        mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "pagetier-test", folder]
        if os.geteuid() or subprocess.run(mount, check=False, capture_output=True).returncode:
            pytest.skip("mount is refused here")
        try:
            yield Path(folder)
        finally:
            subprocess.run(["umount", "--lazy", folder], check=True)
