"""The settings of the fleet."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pagetier.daemon.config.path_types import file_setting
from pagetier.daemon.config.value_types import (
    Section,
    choice_setting,
    duration_setting,
    name_setting,
    size_setting,
    url_setting,
)
from pagetier.tiers.worker_protocol import FleetOptions


class RemoteOptions(Section, frozen=True, kw_only=True):
    """The fleet: hosts share pages through a store that all of them reach."""

    url: Annotated[
        str,
        url_setting(
            "Store of the fleet: file:///FOLDER, s3://BUCKET/PREFIX?endpoint=..., mooncake://MASTER:PORT, or"
            " python://MODULE:CLASS; empty: no fleet."
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
    trusted: Annotated[
        Literal["no", "yes"],
        choice_setting("Whether Mooncake may be used without remote.key_file.", "no", "yes"),
    ] = "no"
    prefix: Annotated[
        str, name_setting("First part of the names of all objects; hosts with another prefix are another fleet.")
    ] = "pagetier"
    write: Annotated[
        Literal["through", "never"],
        choice_setting("Write pages to the fleet soon after they are stored, or only read.", "through", "never"),
    ] = "through"
    rate: Annotated[int, size_setting("Most bytes that are written to the fleet per second; 0: no limit.")] = 0
    compress: Annotated[
        Literal["auto", "off"],
        choice_setting(
            "Compress pages without loss, where that makes them shorter and the store is slower than a core compresses;"
            " hosts of older versions do not read them.",
            "auto",
            "off",
        ),
    ] = "auto"
    ask_timeout: Annotated[
        float, duration_setting("How long the fleet may take to say which pages it has; then they are misses.")
    ] = 0.05
    timeout: Annotated[float, duration_setting("How long one read or write of the store may take.")] = 2.0
    buffers: Annotated[
        int, size_setting("Memory of the fleet's worker for pages on their way, beside the arena.", 1 << 20)
    ] = 256 << 20

    @property
    def fleet(self) -> FleetOptions:
        """The settings that the worker gets."""
        return FleetOptions(
            url=self.url,
            prefix=self.prefix,
            key_file=str(self.key_file or ""),
            trusted=self.trusted == "yes",
            timeout_s=self.timeout,
            buffers=self.buffers,
            compress=self.compress,
        )
