"""A copier with all that belongs to it, for the device that a cache is on."""

from __future__ import annotations

from collections.abc import Callable

from pagetier.client.async_copy.copier import Copier
from pagetier.client.client import Client
from pagetier.kernels.config.copy_settings import CopySettings
from pagetier.kernels.config.file import load_settings
from pagetier.kernels.device import Device
from pagetier.kernels.host.host_device import HostDevice
from pagetier.kernels.layout.frames import Frames
from pagetier.kernels.layout.transfer import PagedCache
from pagetier.kernels.pinning.pinning import Registering, Unregistering


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


def copier_pinning(
    client: Client,
    cache: PagedCache,
    settings: CopySettings,
    registrar: tuple[Registering, Unregistering],
    device: Callable[[Callable[[Frames], bool]], Device],
) -> Copier:
    """A copier that pins the arena in the background, together with the others of this client and process.

    registrar: pins memory, and unpins it. device: made with the question whether all of some frames are pinned by now.
    """
    lease = client.arenas.lease(*registrar)
    its = lease.watched(device(lease.ready))
    if client.session is not None:
        lease.begin(client.session)
    return Copier(client, cache, its, settings, ended=lease.end)


def _on_gpu(client: Client, cache: PagedCache, settings: CopySettings) -> Copier:
    from pagetier.kernels.gpu.cuda import cuda_device
    from pagetier.kernels.pinning.cuda_registrar import cuda_registrar

    name = cache.cache.device
    return copier_pinning(
        client, cache, settings, cuda_registrar(name), lambda pinned: cuda_device(name, settings, pinned)
    )
