"""Validates the options of a fleet, and reads its key; no store is opened, and no store's library loaded."""

from __future__ import annotations

import os
import stat
from typing import Final
from urllib.parse import SplitResult, parse_qsl, urlsplit

from pagetier.tiers.base import TierError
from pagetier.tiers.fleet.object_store import UNFINISHED
from pagetier.tiers.fleet.objects import KEY_FILE_BYTES
from pagetier.tiers.worker_protocol import FleetOptions

PARAMETERS: Final = {
    "file": frozenset[str](),
    "s3": frozenset({"endpoint", "region"}),
    "mooncake": frozenset({"protocol", "hostname", "replicas", "devices"}),
    "python": None,
}
OWN: Final = ("buffers", "compress", "prefix", "trusted")
"""Parameters that every URL may have; the daemon makes options of them."""
_EXAMPLES: Final = "s3://BUCKET/PREFIX, mooncake://HOST:PORT, file:///FOLDER or python://MODULE:CLASS"


def check_options(options: FleetOptions) -> SplitResult:
    """Returns the parts of the URL.

    Raises:
        TierError: What an administrator must change.
    """
    parts = _split(options.url)
    if parts.scheme not in PARAMETERS:
        raise TierError(f"remote.url has no store that pagetier knows: write {_EXAMPLES}")
    if "@" in parts.netloc or (parts.scheme == "s3" and "@" in dict(parse_qsl(parts.query)).get("endpoint", "")):
        raise TierError("remote.url contains a password: put credentials into the worker's environment instead")
    if not (parts.netloc or parts.scheme == "file"):
        raise TierError(f"remote.url names no {parts.scheme} store: write {_EXAMPLES}")
    if parts.scheme == "file" and (parts.netloc or not parts.path.startswith("/")):
        raise TierError("remote.url of a folder has three slashes and an absolute path: write file:///mnt/pages")
    known = PARAMETERS[parts.scheme]
    if known is not None and (unknown := sorted(set(dict(parse_qsl(parts.query))) - known)):
        raise TierError(
            f"remote.url has an unknown parameter {unknown[0]!r}: known are {', '.join(sorted({*known, *OWN}))}"
        )
    if parts.scheme == "mooncake" and not (options.key_file or options.trusted):
        raise TierError(
            "Mooncake shows pages to everybody who reaches its port: set remote.key_file, or trusted=yes in remote.url"
        )
    parts_of_prefix = options.prefix.split("/")
    if parts_of_prefix[0] == UNFINISHED or any(part in ("", ".", "..") for part in parts_of_prefix):
        raise TierError(f"the prefix in remote.url cannot be {options.prefix!r}: write a name such as 'pagetier'")
    return parts


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        _ = parts.port if parts.scheme in ("mooncake", "s3") else None
    except ValueError as error:
        raise TierError(f"remote.url is no URL ({error}): write {_EXAMPLES}") from error
    return parts


def read_key(path: str) -> bytes:
    """Returns the fleet key in a file. Raises TierError if it is no key, or if others may read it."""
    try:
        found, key = _contents(path)
    except OSError as error:
        raise TierError(
            f"remote.key_file {path} cannot be read: {error.strerror or error}: create it, or act as the daemon's user"
        ) from error
    if len(key) != KEY_FILE_BYTES or found.st_size != KEY_FILE_BYTES:
        raise TierError(
            f"remote.key_file {path} has {found.st_size} bytes instead of {KEY_FILE_BYTES}: see docs/fleet.md"
        )
    if found.st_uid not in (0, os.geteuid()):
        raise TierError(f"remote.key_file {path} belongs to user {found.st_uid}: chown it to the daemon's user")
    if found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise TierError(f"remote.key_file {path} can be read by others: chmod 0400 {path}")
    return key


def _contents(path: str) -> tuple[os.stat_result, bytes]:
    """Returns the status of a file and its first bytes, without waiting if it is a FIFO. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return os.fstat(descriptor), os.read(descriptor, KEY_FILE_BYTES)
    finally:
        os.close(descriptor)
