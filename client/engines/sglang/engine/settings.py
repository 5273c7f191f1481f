"""The settings in `linker_extra_config`, and those in `--hicache-storage-backend-extra-config`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from pagetier.client.engines.switch import SettingsOrigin
from pagetier.client.load_or_compute import load_modes
from pagetier.client.tier_speed import LoadTier

_LINKER_OPTION: Final = "linker_extra_config"
_STORAGE_OPTION: Final = "--hicache-storage-backend-extra-config"


class LinkerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings in `linker_extra_config`.

    Attributes:
        socket: The path of the daemon's control socket; "" for the default socket of the user.
        salt: A text that separates engines.
        name: The name in `pagetier stats`.
        weights: A text that identifies the weights.
        lease: Seconds after which pages that were found and not loaded are unpinned.
        disk_timeout: Seconds that the disk has for a prefetch.
        remote_timeout: Seconds that the fleet has; what would take longer at its measured rate is not read.
        remote_least: The least number of tokens by which the fleet must make a hit longer; else it is not asked.
        load: Whether prefixes on disk and in the fleet are loaded where that is faster than computing, by what the
            engine measures, or always, or never; see load_modes().
        flush: Whether the engine still finds its pages after SGLang has emptied its cache: "keep", or "renew", since
            SGLang empties it when its weights are changed, and does not say so.
        events_lease: Seconds for which pages stay announced to routers while there is no daemon.
        mode: Whether pages are loaded and stored, or only one of both.
        switch: The value of the variable PAGETIER if it turned the linker on; users do not set it.
    """

    socket: str = ""
    salt: str = ""
    name: str = "sglang"
    weights: str = ""
    lease: float = 5.0
    disk_timeout: float = 10.0
    remote_timeout: float = 2.0
    remote_least: int = 256
    load: str = "measured"
    flush: Literal["renew", "keep"] = "renew"
    events_lease: float = 30.0
    mode: Literal["both", "save_only", "load_only"] = "both"
    switch: str = ""

    def __post_init__(self) -> None:
        if not 0 < self.remote_timeout <= 3600:
            raise ValueError(f"remote_timeout must be more than 0 and at most 3600 seconds, not {self.remote_timeout}")
        if self.remote_least < 1:
            raise ValueError(f"remote_least must be 1 token or more, not {self.remote_least}")
        _check_load(self.load)

    @property
    def origin(self) -> SettingsOrigin:
        """Where these settings are from, for the log."""
        return SettingsOrigin(_LINKER_OPTION, self.switch)


def read_settings(given: Mapping[str, Any]) -> LinkerSettings:
    """Returns the settings. Raises ValueError for an unknown key or a wrong value; the message names it."""
    try:
        return msgspec.convert(dict(given), LinkerSettings)
    except msgspec.ValidationError as error:
        known = ", ".join(name for name in LinkerSettings.__struct_fields__ if name != "switch")
        raise ValueError(f"{_LINKER_OPTION}: {error}; the known keys are {known}") from error


class StorageSettings(msgspec.Struct, frozen=True):
    """The settings in `--hicache-storage-backend-extra-config`. SGLang's own keys are there too.

    Attributes:
        socket, salt, name, weights: See LinkerSettings.
        timeout: Seconds that a call of SGLang may wait for daemon, disk and fleet. SGLang's `prefetch_timeout_base` is
            longer.
        remote_least, load: See LinkerSettings.
        interface_v1: 1, so that SGLang passes the memory of its pool.
    """

    socket: str = ""
    salt: str = ""
    name: str = "sglang"
    weights: str = ""
    timeout: float = 0.5
    remote_least: int = 256
    load: str = "measured"
    interface_v1: int = 0

    def __post_init__(self) -> None:
        if not self.interface_v1:
            raise ValueError('set "interface_v1": 1')
        _check_load(self.load)

    @property
    def origin(self) -> SettingsOrigin:
        """Where these settings are from, for the log."""
        return SettingsOrigin(_STORAGE_OPTION)


def read_storage_settings(given: Mapping[str, Any]) -> StorageSettings:
    """Returns the settings. Raises ValueError for a wrong value; the message names it."""
    try:
        return msgspec.convert(dict(given), StorageSettings)
    except msgspec.ValidationError as error:
        raise ValueError(f"{_STORAGE_OPTION}: {error}") from error


def _check_load(load: str) -> None:
    """Raises ValueError unless a setting `load` says what becomes of disk and fleet."""
    if LoadTier.MEMORY in load_modes(load) and "=" in load:
        raise ValueError(f'load may name disk and remote, since what is in memory is always loaded, not "{load}"')
