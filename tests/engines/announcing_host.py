"""Announces pages of a real daemon without an engine, to a router that believes the events."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from vllm.v1.kv_cache_interface import FullAttentionSpec

from disk_daemon import FRAME, DiskDaemon
from eventually import PATIENCE_S, eventually
from pagetier.client import Client
from pagetier.client.engines.events.changes import LocationChanges
from pagetier.client.engines.vllm.events import KnownPage, VllmEvents, prefix_cache_resets
from pagetier.client.engines.vllm.paged_group import PagedGroup
from pagetier.client.engines.vllm.request_state import RequestState
from pagetier.client.groups import FullAttention
from running_daemon import namespace

PAGE = 16
PAGES = 6
SPEC = FullAttentionSpec(block_size=PAGE, num_kv_heads=1, head_size=8, dtype=torch.float32)


@dataclass
class Host:
    """A daemon with a disk, events of vLLM, and a router that believes them."""

    daemon: DiskDaemon
    client: Client
    lease: float = 30.0
    believed: dict[str, set[int]] = field(default_factory=lambda: {"CPU": set(), "STORAGE": set()})
    removals: int = 0

    def __post_init__(self) -> None:
        self.pool = SimpleNamespace(cached_block_hash_to_block={})
        self.group = PagedGroup(FullAttention(PAGE), namespace(PAGE, salt=str(id(self))), 1, True)
        self.renew()

    def renew(self, most_pages: int = 1000) -> None:
        self.changes = LocationChanges[KnownPage](self.client, self.lease, most_pages)
        self.events = VllmEvents(self.changes, {0: SPEC}, prefix_cache_resets(self.pool))

    def learn(self, number: int = 0, pages: int = PAGES) -> list[bytes]:
        """Lets the events know a prompt, and returns the hashes of its pages."""
        hashes = [bytes([number, page]) * 16 for page in range(pages)]
        request = SimpleNamespace(
            request_id=f"r{number}", block_hashes=hashes, all_token_ids=list(range(pages * PAGE)), lora_request=None
        )
        request.mm_features, request.cache_salt, request.prompt_embeds = [], None, None
        self.events.learn(RequestState(request, [self.group]))
        return hashes

    def store(self, hashes: list[bytes]) -> None:
        page = np.zeros(FRAME, np.uint8)
        stored = self.client.store(self.group.keys(hashes), [page] * len(hashes), timeout=PATIENCE_S)
        assert stored.stored == len(hashes)

    def located(self) -> bytes:
        """Returns the tiers of the pages of the first prompt."""
        assert self.client.session is not None
        return self.client.session.locate(self.group.keys(self.learn()).data)

    def tells(self) -> list[Any]:
        """Returns the events of one step, and believes them."""
        events = self.events.taken()
        self.hear(events)
        self.events.published()
        return events

    def hear(self, events: list[Any]) -> None:
        """Believes the events of one batch."""
        for event in events:
            known = self.believed[event.medium]
            if type(event).__name__ == "BlockStored":
                known.update(event.block_hashes)
            else:
                assert known.issuperset(event.block_hashes), "removed what was not announced, or twice"
                known.difference_update(event.block_hashes)
                self.removals += len(event.block_hashes)

    def collects(self, events: list[Any]) -> list[Any]:
        """Adds the events of one step, and returns all."""
        events += self.tells()
        return events

    def believes(self, memory: int, disk: int, seconds: float = 30.0) -> bool:
        """Waits until the router believes that so many pages are in memory and on disk."""

        def heard() -> bool:
            self.tells()
            return (len(self.believed["CPU"]), len(self.believed["STORAGE"])) == (memory, disk)

        return eventually(heard, seconds)


def written(host: Host) -> None:
    """Stores a prompt that is in memory and on disk."""
    host.store(host.learn())
    assert host.believes(PAGES, 0)
    assert not host.daemon.save().trouble
    assert host.believes(PAGES, PAGES)
