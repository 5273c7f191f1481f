"""The version of SGLang, and those that pagetier knows."""

from __future__ import annotations

from typing import Final

from sglang import version

from pagetier.client.engines.unsupported import UnsupportedError

VERSION: Final = str(version.__version__)
"""The version of SGLang."""

KNOWN_VERSIONS: Final = ("0.5.23",)
"""The versions with which this package is tested."""


def require_known_version() -> None:
    """Raises UnsupportedError for a version of SGLang that is not known."""
    if VERSION not in KNOWN_VERSIONS:
        known = ", ".join(KNOWN_VERSIONS)
        raise UnsupportedError(f"SGLang {VERSION} is not known: use SGLang {known}, or a pagetier that knows it")
