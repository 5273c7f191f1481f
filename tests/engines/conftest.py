"""Fixtures of all tests with vLLM."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from pagetier.client import Client
from running_daemon import RunningDaemon
from vllm_engine import USER_CACHE, close_engines

os.environ["XDG_CACHE_HOME"] = str(USER_CACHE)  # before any test imports vLLM


@pytest.fixture(scope="session", autouse=True)
def _fork_server() -> Iterator[None]:
    """Closes the fork server, which starts with the first engine."""
    yield
    close_engines()


@pytest.fixture(scope="module")
def daemon() -> Iterator[RunningDaemon]:
    """Runs a daemon for tests without a model."""
    with RunningDaemon("8MiB", "4KiB") as running:
        yield running


@pytest.fixture(scope="module")
def client(daemon: RunningDaemon) -> Iterator[Client]:
    """Attaches to that daemon."""
    with daemon.client() as attached:
        yield attached
