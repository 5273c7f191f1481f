"""All pages of the manual."""

from __future__ import annotations

from importlib.metadata import version

from .commands import pagetier_page, pagetierd_page
from .settings_page import settings_page


def manual() -> dict[str, str]:
    """The text of each page by the name of its file; the same on every host."""
    release = f"pagetier {version('pagetier')}"
    return {
        "pagetier.1": pagetier_page(release),
        "pagetierd.8": pagetierd_page(release),
        "pagetierd.toml.5": settings_page(release),
    }
