"""A copier with all that belongs to it, for the device that a cache is on."""

from __future__ import annotations

from collections.abc import Callable

from ...kernels.arenas import PinnedArenas
from ...kernels.device import Device
from ...kernels.host_device import HostDevice
from ...kernels.settings import load_settings
from ...kernels.thresholds import CopySettings
from ...kernels.transfer import PagedCache
from ..client import Client
from .copier import Copier


def open_copier(client: Client, cache: PagedCache, settings: CopySettings | None = None) -> Copier:
    """Asynchronous copies between this rank's cache and the arena. Close it before the client.

    Args:
        client: attached or not; it stays the caller's.
        cache: in host memory, or on a GPU: then the arena is pinned in the background, and copies go another, slower
            way until it is.
        settings: None: what the copies' configuration says, see kernels.settings.

    Raises SettingsError, and DeviceError where there is no such GPU.
    """
    told = load_settings() if settings is None else settings
    if cache.cache.device == "cpu":
        host = HostDevice(client.threads)
        return Copier(client, cache, host, told, ended=host.close)
    return _on_gpu(client, cache, told)


def _on_gpu(client: Client, cache: PagedCache, settings: CopySettings) -> Copier:
    from ...kernels.cuda import cuda_device
    from ...kernels.registrar import cuda_registrar

    arenas = PinnedArenas(*cuda_registrar(cache.cache.device))
    device: Device = cuda_device(cache.cache.device, settings, arenas.ready)
    if client.session is not None:
        arenas.begin(client.session)
    ended: Callable[[], None] = arenas.close
    return Copier(client, cache, device, settings, ended=ended)
