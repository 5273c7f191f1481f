"""Servers for the tests of each store: one for all tests of a process, and objects under a prefix for each test.

No test leaves a client.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from unittest.mock import patch

import pytest

from client_threads import no_client_is_left
from store_servers import ACCESS_KEY, SECRET_KEY, MooncakeServers, S3Server, mooncake_servers, s3_server

__all__ = ["no_client_is_left"]

_numbers = itertools.count()


@pytest.fixture(scope="session")
def credentials() -> Iterator[None]:
    """Sets the credentials of the S3 servers in the environment."""
    with patch.dict(os.environ, {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}):
        yield


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory, credentials: None) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(scope="session")
def has_mooncake() -> None:
    """Skips the test where Mooncake cannot be loaded."""
    try:
        import mooncake.store  # noqa: F401
    except ImportError as error:
        pytest.skip(f"Mooncake cannot be loaded here: {error}")


@pytest.fixture(scope="session")
def mooncake(tmp_path_factory: pytest.TempPathFactory, has_mooncake: None) -> Iterator[MooncakeServers]:
    with mooncake_servers(tmp_path_factory.mktemp("mooncake")) as servers:
        yield servers


@pytest.fixture
def prefix() -> str:
    """Returns a prefix that no other test uses."""
    return f"test-{os.getpid()}-{next(_numbers)}"
