"""The client against a real daemon: what is stored comes back, in this process and in others."""

from __future__ import annotations

import numpy as np

from running import RunningDaemon, namespace

PAGE = 100_000


def test_what_is_stored_is_loaded() -> None:
    pages = np.random.default_rng(1).integers(0, 256, (10, PAGE), dtype=np.uint8)
    keys = namespace().keys(range(160))
    with RunningDaemon() as daemon, daemon.client() as client:
        assert client.store(keys, pages).stored == 10
        into = np.zeros_like(pages)
        with client.match(keys) as match:
            assert len(match) == 10
            assert client.load(match, into) == 10
        assert np.array_equal(into, pages)
