"""The daemon's life between start and stop: populate, serve, wait for a signal, leave."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable

from ..shm.points import point
from ..shm.segments import Origin, Segments
from .advise import Region, advise
from .host import Host
from .leave import Leave, Told
from .options import Config
from .prefault import Prefaulted, prefault
from .progress import progress_for_people
from .server import Server
from .service import Service
from .sizes import format_size

log = logging.getLogger("pagetierd")


async def run(config: Config, segments: Segments, server: Server, told: Told) -> None:
    """Serves until a signal, also one that has come already. Raises PrefaultError if the arena can not be populated."""
    life = _Life(config, segments, server)
    told.pass_to(life.leave, asyncio.get_running_loop())
    try:
        await life.live()
        await life.write_out()
    finally:
        life.end()


class _Life:
    def __init__(self, config: Config, segments: Segments, server: Server) -> None:
        self._config = config
        self._segments = segments
        self._server = server
        self._way = Leave.STOP if segments.origin is Origin.MADE else Leave.HAND_OVER
        self._leaving = asyncio.Event()
        self._halt = threading.Event()
        self._service: Service | None = None

    def leave(self, way: Leave) -> None:
        """A signal came."""
        self._way = way
        self._halt.set()
        self._leaving.set()

    async def live(self) -> None:
        """Who looks is served at once; engines when the arena is populated, an adopted one being warm already."""
        service = await self._serve()
        if self._segments.origin is Origin.MADE:
            await self._populate()
            self._admit(service)
        else:
            self._admit(service)
            await self._populate()
        await self._leaving.wait()

    async def write_out(self) -> None:
        """What is in memory alone goes to disk, before a stop gives the memory back."""
        if self._service is not None and self._way is Leave.STOP:
            await self._service.disk.stop(self._config.disk.stop)
            point("run.written")

    def end(self) -> None:
        """Leaves in the way that was asked for; what went wrong at start leaves adopted pages where they are."""
        # the socket first: once the segments are let go of, the next daemon may want its name
        self._server.stop()
        point("run.hidden")
        if self._service is not None:
            self._service.close()
        point("run.quiet")
        if self._way is Leave.STOP:
            self._segments.remove()
        else:
            self._segments.release()
        point("run.over")
        log.info("stopped: %s", self._way.value)

    async def _serve(self) -> Service:
        self._service = Service(self._segments, self._config, asyncio.get_running_loop())
        point("run.served")
        await self._server.start(self._service)
        point("run.answers")
        return self._service

    def _admit(self, service: Service) -> None:
        if self._leaving.is_set():
            return
        service.admit()
        point("run.admitted")
        header = self._segments.owner.header()
        log.info(
            "ready on %s: %s, %d pages in %s of %s, incarnation %d",
            self._config.socket,
            self._segments.origin.value,
            header["pages"],
            format_size(header["used_frames"] * header["frame_bytes"]),
            format_size(header["arena_bytes"]),
            header["incarnation"],
        )

    async def _populate(self) -> None:
        owner, arena = self._segments.owner, self._config.arena
        region = Region(owner.arena_address(), arena.whole_size)
        for told in advise(region, huge_pages=arena.huge_pages, numa=arena.numa, host=Host()):
            log.log(logging.INFO if told.taken else logging.WARNING, "%s", told.note)
        if arena.prefault == "populate":
            done = await asyncio.to_thread(self._prefault, owner.populate)
            log.info("%s", done)
            point("run.populated")

    def _prefault(self, populate: Callable[[int, int], None]) -> Prefaulted:
        arena = self._config.arena
        with progress_for_people("arena", log) as progress:
            return prefault(populate, arena.whole_size, threads=arena.threads, progress=progress, stop=self._halt)
