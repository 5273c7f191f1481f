"""Namespaces as clients name them: validated, made printable, and selected by what an administrator types."""

from __future__ import annotations

import functools
from collections.abc import Iterable

import msgspec

from pagetier.shm._core import KEY_BYTES, NamespaceRecord
from pagetier.shm.protocol import Space

_LEAST_DIGITS = 8
_U8, _U32 = 1 << 8, 1 << 32


class IdleCounts(msgspec.Struct):
    """Counters of namespaces since the start of the daemon.

    Attributes:
        dropped: Namespaces that were dropped because they were not used.
        rejected: Requests for room that were rejected because the table was full.
    """

    dropped: int = 0
    rejected: int = 0


def wrong_space(space: Space) -> str:
    """Returns what is invalid in a namespace, or ""."""
    if len(space.digest) != KEY_BYTES:
        return f"a namespace's digest has {KEY_BYTES} bytes, not {len(space.digest)}"
    if not 0 <= space.page_tokens < _U32 or not 0 <= space.window < _U32 or not 0 <= space.group < _U8:
        return f"pages of {space.page_tokens} tokens, a window of {space.window} or group {space.group}: out of range"
    return ""


def with_pages(spaces: Iterable[NamespaceRecord]) -> list[NamespaceRecord]:
    """Returns the namespaces that have pages in memory or on disk.

    A record without pages is free: it is what a probe, a flush or an eviction has left for the next namespace.
    """
    return [space for space in spaces if space.pages or space.disk_pages]


@functools.lru_cache(maxsize=1024)
def printable(name: str) -> str:
    """Returns the name with a question mark for each character that a terminal might interpret as a command."""
    return "".join(letter if letter.isprintable() else "?" for letter in name)


def means(wanted: str | None, label: str, digest: bytes) -> bool:
    """Returns whether `wanted` selects a namespace: by its label, its model, or at least 8 digits of its digest.

    None selects every namespace. A part of a model's name selects none, since models often share a prefix, but the name
    of an organisation before it may be left out, as engines do in labels: so it may also stand in `wanted` alone.
    """
    model = model_of(label)
    if wanted is None or wanted in (label, model, model.rpartition("/")[2]) or wanted.rpartition("/")[2] == model:
        return True
    return len(wanted) >= _LEAST_DIGITS and digest.hex().startswith(wanted.lower())


def model_of(label: str) -> str:
    """Returns the label without the digits of the digest at its end."""
    return label.rpartition(" ")[0] or label
