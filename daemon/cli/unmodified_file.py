"""Files whose last line says whether somebody changed them: a newer one may take the place of what nobody did."""

from __future__ import annotations

import hashlib
from typing import Final

_SEAL: Final = "# as `pagetier unit install` wrote it, if this is the SHA-256 of the lines above: "


def sealed(text: str) -> str:
    """A text of whole lines, and a comment behind it."""
    return f"{text}{_SEAL}{_digest(text)}\n"


def is_as_sealed(text: str) -> bool:
    """Whether a text was sealed, and nothing in it changed since."""
    body, found, digest = text.rpartition(_SEAL)
    return bool(found) and digest == f"{_digest(body)}\n"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
