"""A daemon with a fleet for benchmarks, and the stores' own clients beside it."""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Protocol

from daemon_setup import Stage
from disk_setup import until
from pagetier.daemon.stats.snapshot_reader import take_snapshot
from pagetier.daemon.status.fleet_status import FleetStatus
from pagetier.daemon.workers.supervisor import FLEET_WORKER
from pagetier.shm._core import Observer
from pagetier.shm.daemon_link import Link
from pagetier.shm.protocol import BUILD, Flush, Flushed, Observe
from pagetier.shm.segment_files import observe_and_close
from store_servers import BUCKET, MooncakeServers, S3Server, with_parameters

_CALL_S = 10.0


class FleetScene(Stage):
    """A daemon with a fleet."""

    def __init__(self, url: str, prefix: str, *more: str) -> None:
        super().__init__("--set", f"remote.url={with_parameters(url, prefix=prefix, trusted='yes')}", *more)

    def wait_open(self) -> None:
        """Waits until the fleet is open."""
        until("fleet", lambda: self.status().standing == "open")

    def flush(self) -> None:
        """Drops all pages from memory."""
        with self.observing() as (link, _):
            flushed = link.ask(Flush(1, None, "memory"), _CALL_S)
            assert isinstance(flushed, Flushed) and not flushed.kept, flushed

    def status(self) -> FleetStatus:
        """Returns the status of the fleet."""
        with self.observing() as (_, observer):
            return take_snapshot(observer).fleet

    def worker_cpu(self) -> float:
        """Returns the CPU time of the fleet worker in seconds."""
        with self.observing() as (_, observer):
            pid = next(slot.pid for slot in observer.attachments_with_pins() if slot.name == FLEET_WORKER)
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @contextmanager
    def observing(self) -> Iterator[tuple[Link, Observer]]:
        """Attaches an observer for the duration of the context."""
        with closing(Link(self.socket, _CALL_S)) as link:
            yield link, observe_and_close(link.greet(Observe(BUILD), _CALL_S).descriptors)


class BareClient(Protocol):
    """A store's own client, as a program without pagetier uses it. Thread-safe."""

    def put(self, name: str, data: memoryview) -> None:
        """Stores an object. `data` lies in the memory of the client."""

    def get(self, name: str, into: memoryview) -> None:
        """Loads an object. `into` lies in the memory of the client."""

    def ask(self, names: Sequence[str]) -> None:
        """Asks which objects exist, as the store does it best."""


class BareS3:
    """obstore. A get returns the object in memory of obstore's own, and copies nothing."""

    def __init__(self, server: S3Server) -> None:
        import obstore
        from obstore.store import S3Store

        self._obstore = obstore
        config = {"region": "us-east-1", "endpoint": server.endpoint}
        self._bucket = S3Store(BUCKET, prefix="hosts", config=config, client_options={"allow_http": True})

    def put(self, name: str, data: memoryview) -> None:
        """Implements BareClient.put()."""
        self._obstore.put(self._bucket, name, data, use_multipart=False)

    def get(self, name: str, into: memoryview) -> None:
        """Implements BareClient.get()."""
        assert len(self._obstore.get(self._bucket, name).bytes()) == len(into)

    def ask(self, names: Sequence[str]) -> None:
        """Implements BareClient.ask()."""
        for name in names:
            self._obstore.head(self._bucket, name)


class BareMooncake:
    """Mooncake's client, with registered memory."""

    def __init__(self, servers: MooncakeServers, memory: mmap.mmap) -> None:
        from mooncake.store import MooncakeDistributedStore

        self._client: Any = MooncakeDistributedStore()
        assert not self._client.setup("127.0.0.1", "P2PHANDSHAKE", 0, 16 << 20, "tcp", "", servers.address)
        assert not self._client.register_buffer(_address(memoryview(memory)), len(memory))

    def put(self, name: str, data: memoryview) -> None:
        """Implements BareClient.put()."""
        assert not self._client.put_from(name, _address(data), len(data))

    def get(self, name: str, into: memoryview) -> None:
        """Implements BareClient.get()."""
        assert self._client.get_into(name, _address(into), len(into)) == len(into)

    def ask(self, names: Sequence[str]) -> None:
        """Implements BareClient.ask()."""
        assert all(status == 1 for status in self._client.batch_is_exist(list(names)))

    def remove(self, names: Sequence[str]) -> None:
        """Removes objects: the node has little memory."""
        for name in names:
            self._client.remove(name, True)


def _address(memory: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def pause() -> None:
    """Lets the threads of the server end what they began."""
    time.sleep(0.2)
