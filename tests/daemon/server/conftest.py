"""Fixtures for tests of the control socket."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from in_process_server import serving


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    """Yields the socket of a server in this process."""
    with serving(tmp_path) as socket:
        yield socket
