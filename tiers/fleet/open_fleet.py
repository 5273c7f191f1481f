"""Opens a fleet by its URL."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from typing import Final
from urllib.parse import SplitResult, parse_qsl

from pagetier.shm._core import compresses_fast
from pagetier.tiers.base import TierError, shown_url
from pagetier.tiers.fleet.bounce_buffers import BounceBuffers
from pagetier.tiers.fleet.fleet_options import check_options, read_key
from pagetier.tiers.fleet.object_fleet import ObjectFleet
from pagetier.tiers.fleet.object_store import ObjectStore, StoreSettings
from pagetier.tiers.fleet.page_codecs import EncryptedCodec, PageCodec, PlainCodec
from pagetier.tiers.fleet.page_packer import PagePacker
from pagetier.tiers.fleet.store_calls import LateError, StoreCalls, one_line
from pagetier.tiers.worker_protocol import FleetOptions

log = logging.getLogger("pagetier.tier")

_OPENING_S: Final = 10.0
_PROBE: Final = "probe"


def codec_of(options: FleetOptions) -> PageCodec:
    """Returns how pages are protected. Raises TierError."""
    if not options.key_file:
        return PlainCodec()
    try:
        return EncryptedCodec(read_key(options.key_file))
    except ImportError as error:
        raise TierError(f"remote.key_file needs cryptography: pip install 'pagetier[fleet-key]' ({error})") from error


def open_fleet(options: FleetOptions) -> ObjectFleet:
    """Opens a fleet and asks it once. Raises TierError with what to do."""
    parts = check_options(options)
    codec, calls, buffers = codec_of(options), StoreCalls(options.timeout_s), BounceBuffers(options.buffers)
    given = StoreSettings(
        netloc=parts.netloc,
        path=parts.path,
        parameters=dict(parse_qsl(parts.query)),
        memory=buffers.memory,
        timeout_s=options.timeout_s,
    )
    store = _opened(shown_url(options.url), _kind(parts), given)
    why_not = why_uncompressed(options) if options.compress == "auto" else ""
    if why_not:
        log.info("pages are not compressed for the fleet: %s", why_not)
    packer = PagePacker(codec, "off" if why_not else options.compress)
    fleet = ObjectFleet(store, shown_url(options.url), options.prefix, packer, buffers, calls)
    _ask_once(fleet, store, options)
    return fleet


def why_uncompressed(options: FleetOptions) -> str:
    """Returns why pages cannot be compressed here, "" if they can be.

    A host of a build before compression takes each object of a compressed page for one of another fleet, and leaves it
    alone. But without a key it removes one that is longer than the store said, and only a folder says exact lengths.
    """
    if not compresses_fast():
        return "this processor has no AVX2"
    if not options.key_file and not options.url.startswith("file:"):
        return "hosts of older versions would remove the objects: set remote.key_file"
    return ""


def _opened(url: str, kind: Callable[[StoreSettings], ObjectStore], given: StoreSettings) -> ObjectStore:
    """Opens a store on a thread: some libraries block for minutes without a server."""
    opening = StoreCalls(max(_OPENING_S, given.timeout_s))
    try:
        return opening.run(lambda: kind(given))
    except LateError as error:
        raise TierError(f"{url} cannot be opened: no answer within {opening.timeout_s:g} s") from error
    except TierError:
        raise
    except Exception as error:
        raise TierError(f"{url} cannot be opened: {one_line(error)}") from error


def _ask_once(fleet: ObjectFleet, store: ObjectStore, options: FleetOptions) -> None:
    try:
        fleet.ask(lambda: store.exists([f"{options.prefix}/{_PROBE}"]))
    except TierError as error:
        raise TierError(f"{fleet.state().url} cannot be used: {error}") from error


def _kind(parts: SplitResult) -> Callable[[StoreSettings], ObjectStore]:
    match parts.scheme:
        case "file":
            from pagetier.tiers.fleet.folder_object_store import FolderObjectStore

            return FolderObjectStore
        case "s3":
            from pagetier.tiers.fleet.s3_object_store import S3ObjectStore

            return S3ObjectStore
        case "mooncake":
            from pagetier.tiers.fleet.mooncake_object_store import MooncakeObjectStore

            return MooncakeObjectStore
    return _imported(parts.netloc)


def _imported(name: str) -> Callable[[StoreSettings], ObjectStore]:
    """Returns the class of python://module:Class."""
    module, _, kind = name.partition(":")
    try:
        found: Callable[[StoreSettings], ObjectStore] = getattr(importlib.import_module(module), kind)
    except Exception as error:
        raise TierError(f"python://{name} cannot be imported: {one_line(error)}") from error
    return found
