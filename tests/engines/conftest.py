"""Fixtures of all tests with vLLM."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from vllm_engine import close_engines


@pytest.fixture(scope="session", autouse=True)
def _fork_server() -> Iterator[None]:
    """Closes the fork server, which starts with the first engine."""
    yield
    close_engines()
