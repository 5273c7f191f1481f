"""Runs the daemon from start to stop: populates the arena, serves, waits for a signal, leaves."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from pagetier.daemon.common import loop_clock
from pagetier.daemon.common.progress import progress_for_people
from pagetier.daemon.common.systemd_notify import Notifier
from pagetier.daemon.config.loader import Beside, ConfigError
from pagetier.daemon.config.mistakes import log_each
from pagetier.daemon.config.schema import Config
from pagetier.daemon.host.host import Host
from pagetier.daemon.host.huge_pages import huge_page_report
from pagetier.daemon.host.memory_policy import Region, advise, lazy_memory
from pagetier.daemon.host.orphans import Orphans
from pagetier.daemon.host.prefault import Prefaulted, prefault
from pagetier.daemon.index.service import Service
from pagetier.daemon.server.control_socket import Server
from pagetier.daemon.stats.frame_advice import frame_advice
from pagetier.daemon.status.huge_page_report import FEW_REMEDY
from pagetier.daemon.status.phase import Phase, PhaseProgress
from pagetier.daemon.status.publisher import StatusPublisher
from pagetier.daemon.stop_signals import Reported, StopRequest, meant_by
from pagetier.daemon.upkeep import RemovedSegments, Upkeep
from pagetier.daemon.workers.worker_link import ChildWorkers
from pagetier.shm.failpoints import point
from pagetier.shm.log_format import event
from pagetier.shm.segments import Origin, Segments
from pagetier.shm.units import counted, format_size

if TYPE_CHECKING:
    from pagetier.daemon.http.http_server import HttpServer

log = logging.getLogger("pagetierd")

_CHUNK_S: Final = 60.0  # the longest time without progress in populating before systemd gives up
_STATUS_S: Final = 10.0  # between two updates of the status that systemd shows
_LEAVING_S: Final = 30.0  # what the end of the daemon takes beside writing, on a busy host


class RunContext(msgspec.Struct, frozen=True):
    """The environment of the daemon.

    Attributes:
        notifier: Reports the state of the daemon to the service manager.
        read: Reads the configuration again, for a reload.
        keep_while: A stop is a hand-over while this file or folder exists.
        sources: Returns the source of each setting that was given, as it was read last.
        workers: Has disk workers that were started ahead.
    """

    notifier: Notifier
    read: Callable[[Beside], Config]
    keep_while: Path | None = None
    sources: Callable[[], Mapping[str, str]] = dict
    workers: ChildWorkers = msgspec.field(default_factory=lambda: ChildWorkers({}))


async def run(
    config: Config, segments: Segments, server: Server, signals: Reported, context: RunContext | None = None
) -> None:
    """Serves until a signal arrives, or one that arrived earlier. Raises PrefaultError if populating fails."""
    life = _Life(config, segments, server, context or RunContext(Notifier({}), lambda _: config))
    signals.pass_to(life.leave, life.reload, asyncio.get_running_loop())
    try:
        await life.live()
        await life.write_out()
    finally:
        way = life.end()
    # After an error at the start, that stands alone in the log.
    log.info("stopped: %s", way.value, extra=event("stopped", way=way.name.lower()))


class _Life:
    def __init__(self, config: Config, segments: Segments, server: Server, context: RunContext) -> None:
        self._config = config
        self._asked = config  # the configuration that was read last; parts of it may wait for a restart
        self._context, self._notifier = context, context.notifier
        self._segments, self._server = segments, server
        self._publisher = StatusPublisher(segments.owner)
        self._removed = RemovedSegments(segments)
        self._upkeep = Upkeep(server.restore, Orphans().reap, self._removed.check)
        self._stop_request = StopRequest.STOP if segments.origin is Origin.MADE else StopRequest.HAND_OVER
        self._leaving, self._halt = asyncio.Event(), threading.Event()
        self._service: Service | None = None
        self._http: HttpServer | None = None
        self._open = self._frames_logged = False
        self._changed = False  # a reload was requested before the daemon was ready
        self._refused, self._status_due = "", float("inf")

    def leave(self, request: StopRequest) -> None:
        """Handles a stop signal."""
        self._stop_request = meant_by(request, self._context.keep_while)
        self._halt.set()
        self._leaving.set()

    def reload(self) -> None:
        """Reads the configuration again, at the earliest when engines may attach: a reload reports READY too."""
        if self._leaving.is_set():
            return
        if self._service is None or not self._open:
            self._changed = True
            return
        self._notifier.reloading()
        try:
            self._refused = self._read_again(self._service)
        finally:
            self._notifier.ready(self._status())

    def _read_again(self, service: Service) -> str:
        """Returns why the new configuration was rejected, in which case nothing changes; "" if it is in force."""
        try:
            self._asked = self._context.read(service.in_force.beside)
            changes = service.in_force.take(self._asked)
            service.in_force.sources = self._context.sources()
            if self._http is not None:
                self._http.follow(service.in_force.config)
        except ConfigError as error:
            log_each(log.error, f"not reloaded, the previous settings stay in force: {error}", "reload_refused")
            return f"; not reloaded, the previous settings stay in force: {error}"
        short = service.short_index()
        level = logging.WARNING if changes.later or short else logging.INFO
        log.log(level, "reloaded: %s", "; ".join(filter(None, (str(changes), short))), extra=event("reloaded"))
        return ""

    def _follow(self, config: Config) -> None:
        logging.getLogger().setLevel(config.log.level.upper())
        self._server.follow(config.access, self._asked.access)

    async def live(self) -> None:
        """Serves observers at once, and engines when the arena is populated; an adopted arena usually is already.

        An adopted arena that is not populated, because its daemon was killed early or did not populate it, is granted
        lazily.
        """
        service = await self._serve()
        if self._segments.origin is Origin.MADE:
            await self._populate()
            self._open_to_engines(service)
        else:
            self._open_to_engines(service)
            await self._populate()
        self._status_due = 0.0
        await self._leaving.wait()

    async def write_out(self) -> None:
        """Writes unwritten pages to disk before a stop releases the memory, or if no daemon can find it any more."""
        if self._service is None:
            return
        if self._stop_request is StopRequest.HAND_OVER and self._removed.check():
            self._stop_request = StopRequest.STOP
        self._publisher.note_progress(PhaseProgress(Phase.STOPPING))
        if self._stop_request is StopRequest.STOP:
            self._notifier.stopping("writing unwritten pages to disk", self._config.disk.stop_timeout + _LEAVING_S)
            await self._service.fleet.stop()
            await self._service.disk.stop(self._config.disk.stop_timeout)
            point("run.written")

    def end(self) -> StopRequest:
        """Leaves as the signal requested. After an error at the start, adopted pages stay."""
        self._notifier.stopping(self._stop_request.value, _LEAVING_S)
        # The socket is removed first: when the segments are released, the next daemon may create one of this name.
        self._server.stop()
        if self._http is not None:
            self._http.stop()
        point("run.hidden")
        if self._service is not None:
            self._service.close()
        point("run.quiet")
        if self._stop_request is StopRequest.STOP:
            self._segments.remove()
        else:
            self._segments.release()
        point("run.over")
        return self._stop_request

    async def _serve(self) -> Service:
        if self._config.arena.prefault == "lazy" or not self._segments.whole:
            self._segments.allocate_lazily(lazy_memory(self._config.arena.huge_pages, Host()))
        self._service = Service(self._segments, self._config, self._publisher, asyncio.get_running_loop())
        self._service.disk.workers.take_over(self._context.workers)
        point("run.served")
        self._service.in_force.follow(self._follow)
        self._service.in_force.sources = self._context.sources()
        self._service.alive = self._alive
        await self._server.start(self._service)
        point("run.answers")
        if self._config.metrics.listen is not None or self._config.http.listen:
            self._start_http(self._service)
        return self._service

    def _start_http(self, service: Service) -> None:
        # Imported here, because it costs memory that a daemon without HTTP does not need.
        from pagetier.daemon.http.http_server import HttpServer

        self._http = HttpServer(self._config, service)
        self._upkeep.add(self._http.restore)
        if self._config.metrics.listen is not None:
            log.info("metrics on %s", self._config.metrics.listen, extra=event("metrics"))
        if listen := ", ".join(map(str, self._config.http.listen)):
            log.info("HTTP on %s", listen, extra=event("http"))

    def _open_to_engines(self, service: Service) -> None:
        if self._leaving.is_set():
            return
        service.open_to_engines()
        point("run.opened")
        self._open = True
        self._notifier.ready(self._status())
        header = self._segments.owner.header()
        log.info(
            "ready on %s: %s, %s in %s of %s (%s frames), incarnation %d",
            self._config.socket,
            self._segments.origin.value,
            counted(header.pages, "page"),
            format_size(header.used_frames * header.frame_bytes),
            format_size(header.arena_bytes),
            f"{header.frames:,}",
            header.incarnation,
            extra=event("ready", pages=header.pages, incarnation=header.incarnation),
        )
        if short := service.short_index():
            log.warning("%s", short, extra=event("index_short"))
        if self._changed:
            self.reload()

    def _alive(self) -> None:
        self._notifier.alive()
        if self._leaving.is_set():
            return
        self._upkeep.run_when_due()
        if (now := loop_clock.now()) > self._status_due:
            self._status_due = now + _STATUS_S
            self._notifier.status(self._status())
            self._check_frames()
            self._publisher.note_huge_pages(huge_page_report(self._segments.owner))

    def _check_frames(self) -> None:
        """Warns once if frames are much larger than the pages in them."""
        header = self._segments.owner.header()
        advice = frame_advice(header.pages, header.bytes, header.used_frames * header.frame_bytes)
        if advice and not self._frames_logged:
            self._frames_logged = True
            log.warning("%s", advice, extra=event("frame_size"))

    def _status(self) -> str:
        header = self._segments.owner.header()
        arena = f"{format_size(header.used_frames * header.frame_bytes)} of {format_size(header.arena_bytes)}"
        return f"serving {counted(header.pages, 'page')} in {arena} on {self._config.socket}{self._refused}"

    async def _populate(self) -> None:
        owner, arena = self._segments.owner, self._config.arena
        region = Region(*owner.mappings()[-1])
        for advice in advise(region, huge_pages=arena.huge_pages, numa=arena.numa, host=Host()):
            expected = advice.taken or advice.what == "huge pages"  # many hosts have none, and doctor says it
            log.log(logging.INFO if expected else logging.WARNING, "%s", advice.note, extra=event("memory"))
        if arena.prefault == "populate":
            done = await asyncio.to_thread(self._prefault, owner.populate, asyncio.get_running_loop())
            log.info("%s", done, extra=event("populated", bytes=done.nbytes, seconds=done.seconds))
            point("run.populated")
            self._log_huge_pages()

    def _log_huge_pages(self) -> None:
        """Logs how much of the segments is in huge pages; warns if they were requested and are missing."""
        report = huge_page_report(self._segments.owner)
        if not report.text:
            return
        lacking = report.few and self._config.arena.huge_pages == "advise" and not Host().huge_pages().obstacle
        log.log(
            logging.WARNING if lacking else logging.INFO,
            "huge pages: %s%s",
            report.text,
            f"; {FEW_REMEDY}" if lacking else "",
            extra=event("huge_pages", **msgspec.structs.asdict(report)),
        )

    def _prefault(self, populate: Callable[[int, int], None], loop: asyncio.AbstractEventLoop) -> Prefaulted:
        arena = self._config.arena
        with progress_for_people("arena", log) as report:

            def progress(done: int, total: int) -> None:
                report(done, total)
                loop.call_soon_threadsafe(self._show_start, done, total)
                status = f"populating the arena: {format_size(done)} of {format_size(total)}"
                self._notifier.progress(status, _CHUNK_S)

            return prefault(populate, arena.whole_size, progress=progress, stop=self._halt)

    def _show_start(self, done: int, total: int) -> None:
        """Publishes how far the arena is populated, unless engines may attach already."""
        if self._service is not None and not self._open and not self._leaving.is_set():
            self._publisher.note_progress(PhaseProgress(Phase.STARTING, done, total))
