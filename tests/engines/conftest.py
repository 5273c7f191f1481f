"""What all tests with vLLM share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from vllm_engine import close_engines


@pytest.fixture(scope="session", autouse=True)
def _nursery() -> Iterator[None]:
    """It is started with the first engine."""
    yield
    close_engines()
