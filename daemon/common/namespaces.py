"""Namespaces that others chose: whether they make sense, shown safely, and found by what an administrator types."""

from __future__ import annotations

from pagetier.shm.protocol import Space

_LEAST_DIGITS = 8
_DIGEST_BYTES = 32
_U8, _U32 = 1 << 8, 1 << 32


def wrong_space(space: Space) -> str:
    """What makes no sense in a namespace, or nothing."""
    if len(space.digest) != _DIGEST_BYTES:
        return f"a namespace's digest has {_DIGEST_BYTES} bytes, not {len(space.digest)}"
    if not 0 <= space.page_tokens < _U32 or not 0 <= space.window < _U32 or not 0 <= space.group < _U8:
        return f"pages of {space.page_tokens} tokens, a window of {space.window}, group {space.group} make no sense"
    return ""


def printable(name: str) -> str:
    """The name with a question mark for what a terminal might take as a command."""
    return "".join(letter if letter.isprintable() else "?" for letter in name)


def means(wanted: str | None, label: str, digest: bytes) -> bool:
    """Whether a namespace is meant: by its label, by the label's model, or by 8 or more digits of its digest.

    None means every namespace. A part of a model's name means none: models that begin alike are too many.
    """
    if wanted is None or wanted in (label, model_of(label)):
        return True
    return len(wanted) >= _LEAST_DIGITS and digest.hex().startswith(wanted.lower())


def model_of(label: str) -> str:
    """The label without the digits of the digest that end it."""
    return label.rpartition(" ")[0] or label
