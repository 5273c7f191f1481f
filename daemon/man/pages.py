"""All pages that are generated."""

from __future__ import annotations

from importlib.metadata import version

from pagetier.daemon.man.configuration_page import configuration_page
from pagetier.daemon.man.content import pagetier_page, pagetierd_page
from pagetier.daemon.man.settings_page import settings_page


def manual() -> dict[str, str]:
    """Returns the text of each manual page by its file name; the same on every host."""
    release = f"pagetier {version('pagetier')}"
    return {
        "pagetier.1": pagetier_page(release),
        "pagetierd.8": pagetierd_page(release),
        "pagetierd.toml.5": settings_page(release),
    }


def documents() -> dict[str, str]:
    """Returns the text of each generated file by its path below docs."""
    return {f"man/{name}": text for name, text in manual().items()} | {"configuration.md": configuration_page()}
