"""Names that others chose: shown safely, and found by what an administrator types."""

from __future__ import annotations

_LEAST_DIGITS = 8


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
