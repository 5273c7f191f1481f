"""The settings of the connector, `kv_connector_extra_config` in vLLM's `--kv-transfer-config`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from pagetier.client.engines.fleet_reads import FleetLimits
from pagetier.client.engines.switch import SettingsOrigin
from pagetier.client.load_or_compute import load_modes

SLEEP_NEEDS: Final = "which needs vLLM 0.33 or later beside pagetier"
_OPTION: Final = "kv_connector_extra_config"


class ConnectorSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings in `kv_connector_extra_config`.

    Attributes:
        socket: The daemon's control socket; empty for the user's default socket.
        disk_timeout: Seconds that a request may wait for pages on disk before it is computed; with 0 no request waits.
        remote_timeout: Seconds that a request may wait for pages of the fleet; with 0 no request waits for it.
        remote_ask_timeout: Seconds that a request may wait for the answer which pages the fleet has.
        remote_least: The least number of tokens by which the fleet must make a hit longer; else it is not asked.
        load: Whether prefixes on disk and in the fleet are loaded where that is faster than computing, by what the
            engine measures, or always, or never; see load_modes().
        salt: Engines with different salts share no pages.
        name: The engine's name for administrators; empty for the name of the program.
        weights: A text that identifies the engine's weights, those of a draft model too, instead of commits or files.
        store: Whether pages are stored when they are computed, or when they leave vLLM's own cache.
        prefix_caching: Whether this connector follows vLLM's switch `enable_prefix_caching`, or caches always.
        events_lease: Seconds for which pages stay announced to routers while there is no daemon.
        mode: Whether pages are loaded and stored, or only one of both. `kv_role` may exclude one, too.
        switch: The value of the variable PAGETIER if it turned the connector on; users do not set it.

    Raises:
        ValueError: A value is out of range.
    """

    socket: str = ""
    disk_timeout: float = 2.0
    remote_timeout: float = 2.0
    remote_ask_timeout: float = 0.05
    remote_least: int = 256
    load: str = "measured"
    salt: str = ""
    name: str = ""
    weights: str = ""
    store: Literal["eager", "on_eviction"] = "eager"
    prefix_caching: Literal["follow", "always"] = "follow"
    events_lease: float = 30.0
    mode: Literal["both", "save_only", "load_only"] = "both"
    switch: str = ""

    def __post_init__(self) -> None:
        for name in ("disk_timeout", "remote_timeout", "remote_ask_timeout", "events_lease"):
            if not 0 <= getattr(self, name) <= 3600:
                raise ValueError(f"{name} must be from 0 to 3600 seconds, not {getattr(self, name)}")
        load_modes(self.load)
        if self.remote_least < 1:
            raise ValueError(f"remote_least must be 1 token or more, not {self.remote_least}")

    @property
    def fleet_limits(self) -> FleetLimits:
        """When the fleet is asked, and how long a request waits for it."""
        return FleetLimits(self.remote_timeout, self.remote_least, self.remote_ask_timeout)

    @property
    def origin(self) -> SettingsOrigin:
        """Where these settings are from, for the log."""
        return SettingsOrigin(_OPTION, self.switch)


def read_settings(given: Mapping[str, Any]) -> ConnectorSettings:
    """Returns the settings of `kv_connector_extra_config`.

    Raises:
        ValueError: A key is unknown, or a value has a wrong type or is out of range. The message names the key.
    """
    known = ConnectorSettings.__struct_fields__
    if unknown := sorted(set(given) - set(known)):
        listed = ", ".join(name for name in known if name != "switch")
        raise ValueError(f"{_OPTION}: unknown key {', '.join(unknown)}; the known keys are {listed}")
    try:
        return msgspec.convert(dict(given), ConnectorSettings)
    except (msgspec.ValidationError, ValueError) as error:
        raise ValueError(f"{_OPTION}: {error}") from error


def cannot_sleep(config: Any, *, connectors_follow: bool) -> bool:
    """Returns whether this vLLM may take the cache away without asking its connector, since sleep mode is on.

    Args:
        config: vLLM's VllmConfig.
        connectors_follow: Whether this vLLM asks its connector.
    """
    return bool(getattr(config.model_config, "enable_sleep_mode", False)) and not connectors_follow


class Directions(msgspec.Struct, frozen=True):
    """Whether pages are loaded, and whether they are stored."""

    loads: bool
    stores: bool


def directions_of(transfer: Any, settings: ConnectorSettings) -> Directions:
    """Returns what the engine's `kv_role` and the setting `mode` allow. Raises ValueError if that is nothing."""
    found = Directions(
        loads=transfer.is_kv_consumer and settings.mode != "save_only",
        stores=transfer.is_kv_producer and settings.mode != "load_only",
    )
    if not (found.loads or found.stores):
        raise ValueError(
            f'"mode": "{settings.mode}" in kv_connector_extra_config leaves nothing to do for an engine with'
            f' "kv_role": "{transfer.kv_role}": set another mode or kv_role'
        )
    return found
