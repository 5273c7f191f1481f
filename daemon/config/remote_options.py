"""The settings of the fleet, and the parameters of its URL that are pagetier's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import unquote

from pagetier.daemon.config.path_types import file_setting
from pagetier.daemon.config.value_types import (
    Section,
    Setting,
    choice_setting,
    duration_setting,
    name_setting,
    size_setting,
    url_setting,
)
from pagetier.tiers.worker_protocol import FleetOptions

# The other parameters of a URL are those of its store.
_PARAMETERS: Final[dict[str, Callable[[object], Any]]] = {
    "prefix": name_setting("First part of the names of all objects; another prefix is another fleet.").read,
    "trusted": choice_setting("Whether Mooncake may be used without remote.key_file.", "no", "yes").read,
    "compress": choice_setting("Whether pages are compressed where that pays.", "auto", "off").read,
    "buffers": size_setting("Memory of the fleet's worker for pages on their way.", least=1 << 20).read,
}


def _split(url: str) -> tuple[str, dict[str, Any]]:
    """Returns the URL for the store, and pagetier's own parameters. Raises ValueError if one of these is invalid."""
    address, _, query = url.partition("?")
    items = [(item, *item.partition("=")[::2]) for item in query.split("&") if item]
    of_store = "&".join(item for item, name, _ in items if name not in _PARAMETERS)
    own = {name: _PARAMETERS[name](unquote(text)) for _, name, text in items if name in _PARAMETERS}
    return f"{address}?{of_store}" if of_store else address, own


def _fleet_setting(help: str) -> Setting:
    plain = url_setting(help)

    def read(raw: object) -> str:
        url: str = plain.read(raw)
        _split(url)
        return url

    return Setting(read=read, show=plain.show, metavar=plain.metavar, help=help)


class RemoteOptions(Section, frozen=True, kw_only=True):
    """The fleet: hosts share pages through a store that all of them reach."""

    url: Annotated[
        str,
        _fleet_setting(
            "Store of the fleet: file:///FOLDER, s3://BUCKET/PREFIX?endpoint=..., mooncake://MASTER:PORT, or"
            " python://MODULE:CLASS, with parameters such as prefix=NAME and compress=off (docs/fleet.md); empty: no"
            " fleet."
        ),
    ] = ""
    worker: Annotated[
        Literal["spawn", "service"],
        choice_setting(
            "Whether the daemon starts the fleet's worker (spawn), or waits for the worker of a service of its own at"
            " remote.sock beside the control socket (service), which has the network that the daemon lacks.",
            "spawn",
            "service",
        ),
    ] = "spawn"
    key_file: Annotated[
        Path | None,
        file_setting(
            "File with the 32 bytes of the fleet key, readable by the daemon's user only: pages are encrypted with it."
        ),
    ] = None
    write: Annotated[
        Literal["through", "never"],
        choice_setting("Write pages to the fleet soon after they are stored, or only read.", "through", "never"),
    ] = "through"
    rate: Annotated[int, size_setting("Most bytes that are written to the fleet per second; 0: no limit.")] = 0
    ask_timeout: Annotated[
        float, duration_setting("How long the fleet may take to say which pages it has; then they are misses.")
    ] = 0.05
    timeout: Annotated[float, duration_setting("How long one read or write of the store may take.")] = 2.0

    @property
    def fleet(self) -> FleetOptions:
        """The settings that the worker gets."""
        url, own = _split(self.url)
        own["trusted"] = own.get("trusted") == "yes"
        return FleetOptions(url=url, key_file=str(self.key_file or ""), timeout_s=self.timeout, **own)
