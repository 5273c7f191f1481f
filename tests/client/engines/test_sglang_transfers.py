"""Tests that no exception of a rank's own groups reaches SGLang's scheduler."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pagetier.client import Client
from pagetier.client.engines.prefetch_thread import PrefetchThread
from pagetier.client.engines.sglang.linker.loads import LayerCounter
from pagetier.client.engines.sglang.linker.transfers import RankServices, ServedGroups, Streams, Transfers
from pagetier.kernels.config.settings_file import SettingsError


class Opening:
    """Opens the groups of a rank, whose copy settings have become wrong."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, flushes: int) -> ServedGroups | None:
        self.calls += 1
        raise SettingsError("copy.toml: not TOML")


def test_groups_that_cannot_be_opened_are_logged_once_for_each_flush(caplog: pytest.LogCaptureFixture) -> None:
    client, opening = Client("/nowhere/pagetier.sock"), Opening()
    ranks: Any = SimpleNamespace(agree=lambda *, here: here)
    services = RankServices(PrefetchThread(client))
    transfers = Transfers(client, opening, services, LayerCounter(), ranks, Streams(lambda: None, None))
    for flushes in (1, 2):
        for _ in range(3):
            assert transfers.lookup("request", []) == []
            assert not transfers.load("request", [])
            assert transfers.start() == -1
            transfers.offload([])
            assert transfers.completed() == 1
            assert not transfers.pop()
            transfers.released(SimpleNamespace(finished_reason=None, session_id=None), bytes)
        assert opening.calls == flushes, "what has failed is not tried in each step"
        assert caplog.text.count("pagetier cannot open the caches") == flushes
        transfers.reset()
    transfers.close()
