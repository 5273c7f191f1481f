"""Objects in a Mooncake Store: mooncake://MASTER:PORT?protocol=tcp&hostname=ADDRESS&replicas=1&devices=...

Its data port shows all registered memory to everybody who can reach it, and lets them write to it. So only bounce
buffers are registered, and pages should be encrypted with a fleet key.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import threading
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from pagetier.shm import clock
from pagetier.tiers.base import TierError
from pagetier.tiers.fleet.object_store import ABSENT, StoreSettings

_NOT_FOUND: Final = -704
_TOO_SMALL: Final = -600
_LOCAL_BUFFER: Final = 16 << 20
_PERMIT_S: Final = 0.05
# Its own limits, undocumented and renamed from release to release: they make hung calls return, and are not relied on.
_VARIABLES: Final = {
    "MC_TCP_STATUS_TIMEOUT_SEC": "1",
    "MC_TCP_PROGRESS_TIMEOUT_SEC": "1",
    "MC_RPC_TIMEOUT_MS": "500",
    "MC_STORE_CLIENT_SETUP_RETRIES": "1",
}


class MooncakeObjectStore:
    """A client of a Mooncake Store that contributes no memory of its own, so that it may die at any time."""

    def __init__(self, options: StoreSettings) -> None:
        for name, value in _VARIABLES.items():
            os.environ.setdefault(name, value)
        try:
            from mooncake.store import MooncakeDistributedStore, ReplicateConfig
        except ImportError as error:
            raise TierError(f"a mooncake:// URL needs Mooncake: pip install 'pagetier[mooncake]' ({error})") from error
        self._base = ctypes.addressof(ctypes.c_char.from_buffer(options.memory))
        self._gets, self._puts = _SoftSemaphore(options.timeout_s), _SoftSemaphore(options.timeout_s)
        self._config = ReplicateConfig()
        self._config.replica_num = int(options.parameters.get("replicas", "1"))
        self._client: Any = MooncakeDistributedStore()
        self._set_up(options)
        if status := self._client.register_buffer(self._base, len(options.memory)):
            raise TierError(f"Mooncake cannot register {len(options.memory)} bytes (error {status}): see its log")

    def _set_up(self, options: StoreSettings) -> None:
        hostname = options.parameters.get("hostname") or _own_address(options.netloc)
        protocol, devices = options.parameters.get("protocol", "tcp"), options.parameters.get("devices", "")
        status = self._client.setup(hostname, "P2PHANDSHAKE", 0, _LOCAL_BUFFER, protocol, devices, options.netloc)
        if status:
            raise TierError(f"cannot reach Mooncake's master at {options.netloc} (error {status}): is it running?")

    def exists(self, names: Sequence[str]) -> list[bool]:
        """Asks for all objects at once."""
        found = self._client.batch_is_exist(list(names))
        if any(status < 0 for status in found):
            raise OSError(f"error {min(found)}")
        return [status == 1 for status in found]

    def sizes(self, names: Sequence[str]) -> array[int]:
        """Returns the length of the first object of each namespace, for all of the namespace that exist.

        Lengths take Mooncake three times as long as existence. That nothing is described says nothing: its master may
        not have answered.
        """
        spaces = [name.rpartition("/")[0] for name in names]
        lengths = self._lengths(_first_of_each(spaces, names))
        if len(lengths) == len(names):
            return array("Q", [lengths[space] for space in spaces])
        there = self.exists(names)
        found = [(space, name) for space, name, here in zip(spaces, names, there, strict=True) if here]
        unknown = [(space, name) for space, name in found if space not in lengths]
        lengths |= self._lengths(_first_of_each(*zip(*unknown, strict=True))) if unknown else {}
        return array("Q", [lengths.get(space, 0) * here for space, here in zip(spaces, there, strict=True)])

    def _lengths(self, names: Mapping[str, str]) -> dict[str, int]:
        """Returns the lengths of those of these objects that are described, one for each namespace."""
        described = self._client.batch_get_replica_desc(list(names.values())) if names else {}
        return {space: _length(described[name]) for space, name in names.items() if name in described}

    def put(self, name: str, data: memoryview) -> bool:
        """Stores an object; if there is one, nothing happens and Mooncake does not say so."""
        with self._puts.permit_or_timeout():
            status = self._client.put_from(name, self._address(data), len(data), self._config)
        if status:
            raise OSError(f"error {status}")
        return True

    def get(self, name: str, into: memoryview) -> int:
        """Copies an object from the node that has it."""
        with self._gets.permit_or_timeout():
            status = int(self._client.get_into(name, self._address(into), len(into)))
        if status == _TOO_SMALL:
            status = int(self._client.get_size(name))
        if status < 0 and status != _NOT_FOUND:
            raise OSError(f"error {status}")
        return ABSENT if status == _NOT_FOUND else status

    def remove(self, name: str) -> None:
        """Removes an object at once: without force, one that was just read stays."""
        status = self._client.remove(name, True)
        if status not in (0, _NOT_FOUND):
            raise OSError(f"error {status}")

    def close(self) -> None:
        """Leaves the master."""
        self._client.close()

    def _address(self, buffer: memoryview) -> int:
        return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


class _SoftSemaphore:
    """Permits for calls that wait for bytes, which keeps a core busy: half as many as cores, at least two."""

    def __init__(self, timeout_s: float) -> None:
        self._permits = threading.Semaphore(max(2, len(os.sched_getaffinity(0)) // 2))
        self._most_s = min(_PERMIT_S, timeout_s / 10)

    @contextlib.contextmanager
    def permit_or_timeout(self) -> Iterator[None]:
        """Waits for a permit, but not for long: the call then runs without one, since calls that hang keep theirs."""
        has_permit = clock.wait(lambda seconds: self._permits.acquire(timeout=seconds), self._most_s)
        try:
            yield
        finally:
            if has_permit:
                self._permits.release()


def _first_of_each(spaces: Sequence[str], names: Sequence[str]) -> dict[str, str]:
    """Returns the first name of each namespace."""
    return dict(zip(reversed(spaces), reversed(names), strict=True))


def _length(replicas: Sequence[Any]) -> int:
    """Returns the length that the first replica with a known one has."""
    for replica in replicas:
        if replica.is_memory_replica():
            return int(replica.get_memory_descriptor().buffer_descriptor.size)
        if replica.is_disk_replica():
            return int(replica.get_disk_descriptor().object_size)
    return 0


def _own_address(master: str) -> str:
    """Returns the address from which this host reaches the master. Raises TierError."""
    host, _, port = master.rpartition(":")
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host.strip("[]"), int(port)))
            return str(probe.getsockname()[0])
    except (OSError, ValueError) as error:
        raise TierError(f"{master!r} is no address of a Mooncake master: write mooncake://HOST:PORT") from error
