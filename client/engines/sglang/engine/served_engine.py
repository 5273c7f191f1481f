"""What the linker and the storage backend open alike: the engine's groups, its weights, the client of a rank."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from pagetier.client.client import Client
from pagetier.client.engines.attachment_log import AttachmentLog, describe_memory
from pagetier.client.engines.block_groups import BlockGroup, better_page_tokens, fill_of
from pagetier.client.engines.file_digests import FileDigests, user_memory
from pagetier.client.engines.sglang.engine.namespace import EngineFacts, namespace_of, weights_sources
from pagetier.client.engines.sglang.engine.settings import LinkerSettings, StorageSettings
from pagetier.client.engines.sglang.pools.device_pools import STATE, DevicePool
from pagetier.client.engines.sglang.pools.engine_groups import EngineGroup
from pagetier.client.engines.weights import ModelIdentity, started_ns
from pagetier.client.engines.weights_thread import WeightsThread
from pagetier.client.reconnect import LinkEvent
from pagetier.client.registered_group import RegisteredGroup
from pagetier.kernels.layout.transfer import PagedCache
from pagetier.shm._core import Session

log = logging.getLogger("pagetier.sglang")

_IDENTIFY_S: Final = 5.0  # by which the start of an engine may be delayed to identify its weights
_ATTACH_S: Final = 1.0


class ServedEngine(msgspec.Struct, frozen=True, eq=False):
    """The engine's facts, its pools, and the paged cache of each pool."""

    facts: EngineFacts
    pools: Sequence[DevicePool]
    paged: Sequence[PagedCache]

    def groups(self, client: Client, identity: ModelIdentity, salt: str) -> tuple[EngineGroup, ...]:
        """Returns the group of each pool, with the namespace that the model's identity and the salt give it."""
        return tuple(
            self._group(client, pool, own, identity, salt) for pool, own in zip(self.pools, self.paged, strict=True)
        )

    def _group(
        self, client: Client, pool: DevicePool, own: PagedCache, identity: ModelIdentity, salt: str
    ) -> EngineGroup:
        name = namespace_of(self.facts, pool, own, identity, salt)
        return EngineGroup(pool.name, RegisteredGroup(client, own, name), pool.layers, pool.page_slots)

    def describe(self, session: Session | None, event: LinkEvent, identity: ModelIdentity, salt: str) -> str:
        """Returns what the engine caches, and where.

        Args:
            session: The mapped segments.
            event: The attachment.
            identity: The identity of the model.
            salt: The salt of the namespaces.
        """
        pairs = zip(self.pools, self.paged, strict=True)
        sizes = ", ".join(f"{pool.name} {own.page.nbytes / 1024:g} KiB" for pool, own in pairs)
        name = namespace_of(self.facts, self.pools[0], self.paged[0], identity, salt)
        return (
            f"{describe_memory(session, event)}, pages of {name.page_tokens} tokens ({sizes}){self._waste},"
            f' namespace "{name.name}", {identity.summary}'
        )

    @property
    def _waste(self) -> str:
        """What the log says of pages that fill less than three quarters of their frames, else ""."""
        if getattr(self.facts.model.hf_config, "index_topk", None):  # SGLang sets the pages of sparse attention itself
            return ""
        pairs = zip(self.pools, self.paged, strict=True)
        groups = [BlockGroup(pool.group.kind, own.page.nbytes) for pool, own in pairs if pool.name != STATE]
        if not (tokens := better_page_tokens(groups)):
            return ""
        better = fill_of(groups, tokens // groups[0].kind.page_tokens)
        flag = tokens // self.facts.tokens[1]
        return f" that fill {fill_of(groups, 1):.0%} of their frames: --page-size {flag} fills {better:.0%}"


def weights_thread(
    facts: EngineFacts, settings: LinkerSettings | StorageSettings, identified: Callable[[ModelIdentity], None]
) -> WeightsThread:
    """Starts to identify the weights of an engine; see WeightsThread."""
    sources = weights_sources(facts, settings.weights, started_ns())
    return WeightsThread(sources, FileDigests(user_memory()), log, settings.origin, identified)


def wait_for_weights(weights: WeightsThread, rank: int) -> None:
    """Waits a moment for the identity of the weights. If that is too short, the first rank logs it for all."""
    weights.wait(_IDENTIFY_S)
    if not rank:
        weights.log_unless_ended()


def open_client(settings: LinkerSettings | StorageSettings, attachment_log: AttachmentLog, rank: int) -> Client:
    """Returns the client of a rank. The first rank logs the connection for all, the others only their rejection."""
    on_link = attachment_log.on_rejected if rank else attachment_log.on_link
    client = Client(settings.socket or None, name=settings.name, on_link=on_link)
    client.wait_attached(_ATTACH_S)
    return client
