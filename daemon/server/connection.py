"""One connection of the control socket: who it is, and which of its requests goes where."""

from __future__ import annotations

import asyncio
import logging
import os
import select
import socket
import time
from collections.abc import Sequence

import msgspec

from pagetier.daemon.common.log_throttle import LogThrottle
from pagetier.daemon.config.schema import AccessOptions
from pagetier.daemon.host.peer_credentials import Peer, Rights, caller_of, peer_of, rights_of
from pagetier.daemon.index.service import Service
from pagetier.daemon.server.limits import ConnectionLimits
from pagetier.shm._core import ShmError
from pagetier.shm.failpoints import point
from pagetier.shm.log_format import event
from pagetier.shm.protocol import (
    BUILD,
    GREETING_LIMIT,
    REQUEST_LIMIT,
    Answer,
    Attach,
    Check,
    Detach,
    Detached,
    Fetch,
    Findings,
    Flush,
    Observe,
    ProtocolError,
    Refusal,
    Request,
    Reserve,
    Resize,
    Save,
    Saved,
    Unpacker,
    Welcome,
    pack,
    read_request,
)

log = logging.getLogger(__name__)

GREETING_S = 5.0
_WATCHER_LIMIT = 64 << 10  # bytes of a message from who may not attach, or does not
_TURN_S = 0.002  # then the others have theirs
_MOST_OPEN = 1024  # requests of one peer that wait for their answers: no more is read before
_NOT_ALLOWED = {
    Rights.WATCH: "this user may look and change nothing: see access.users and access.groups",
    Rights.USE: "only root and the daemon's own user may change sizes",
}


class Admission(msgspec.Struct, frozen=True):
    """An answer to a greeting, and the descriptors that go with it."""

    answer: Welcome | Refusal
    descriptors: Sequence[int] = ()


class House(msgspec.Struct, frozen=True):
    """What all connections of a server share. patience: seconds in which a peer must say who it is."""

    service: Service
    access: AccessOptions
    gate: ConnectionLimits
    complaints: LogThrottle
    patience: float = GREETING_S


class Connection(asyncio.Protocol):
    """One peer. It says first who it is, and gets nothing before.

    It has short turns, however much it asks, and what it does not read is not answered any further.
    """

    def __init__(self, house: House) -> None:
        self._house = house
        self._service = house.service
        self._access = house.access
        self._unpacker = Unpacker(_WATCHER_LIMIT)
        self._entered = self._greeted = False
        self._rights = Rights.NOTHING
        self._slot = -1
        self._had_slot = False
        self._ends = 0
        self._open = 0
        self._choked = self._waits = self._walked_for = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The peer has a few seconds to greet."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._caller = caller_of(transport.get_extra_info("socket"))
        self._loop = asyncio.get_running_loop()
        self._late = self._loop.call_later(self._house.patience, self._end, "it never said who it is")
        rights = rights_of(self._caller, self._access)
        if why := self._house.gate.enter(self._caller, rights, self._end):
            self._end(why)
            return
        self._entered = True
        if rights >= Rights.USE:
            self._unpacker.limit(GREETING_LIMIT)

    def connection_lost(self, exc: Exception | None) -> None:
        """Says nothing about the process: its slot stays."""
        self._late.cancel()
        if self._entered:
            self._house.gate.greeted(self._caller, self._end)
            self._house.gate.leave(self._caller, self._end)

    def pause_writing(self) -> None:
        """A peer that does not read its answers is asked for no more."""
        self._choked = True

    def resume_writing(self) -> None:
        """It has caught up."""
        self._choked = False
        self._go_on_soon()

    def data_received(self, data: bytes) -> None:
        """Answers what is complete of it; what is not may be so much for all connections of a process."""
        self._take_turn(data)
        if why := self._house.gate.hold(self._caller, self._end, self._unpacker.held):
            self._unpacker = Unpacker()  # a peer that reads no answers keeps its connection from being closed
            self._end(why)

    def _take_turn(self, data: bytes) -> None:
        """Answers requests that are complete, for a short while; the others when everybody else had a turn."""
        ends = time.monotonic() + _TURN_S
        try:
            for body in self._unpacker.feed(data):
                self._handle(read_request(body))
                if self._transport.is_closing():
                    return
                if self._blocked or time.monotonic() > ends:
                    self._transport.pause_reading()
                    self._waits = True
                    self._go_on_soon()
                    return
        except ProtocolError as error:
            self._misunderstood(str(error))
        self._transport.resume_reading()

    @property
    def _blocked(self) -> bool:
        return self._choked or self._walked_for or self._open >= _MOST_OPEN

    def _go_on_soon(self) -> None:
        if self._waits and not self._blocked:
            self._waits = False
            self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        if not self._transport.is_closing():
            self.data_received(b"")

    def _misunderstood(self, why: str) -> None:
        """A peer of another version may send what makes no sense here; it is told, if nothing else was said yet."""
        if not self._greeted:
            self._send(Refusal(f"the daemon is {BUILD!r}: {why}"))
        self._end(why)

    def _handle(self, request: Request) -> None:
        match request:
            case Attach() | Observe() if not self._greeted:
                self._greet(request)
            case Reserve() | Fetch() | Detach() if self._slot >= 0:
                self._handle_of_engine(request)
            case Save() | Flush() | Check() | Resize() if self._greeted:
                self._handle_if_allowed(request)
            case _:
                raise ProtocolError(f"{type(request).__name__} is not for it, or not yet")

    def _handle_of_engine(self, request: Reserve | Fetch | Detach) -> None:
        if self._service.ends(self._slot) != self._ends:
            raise ProtocolError("its slot was given back over another connection, and may be somebody else's by now")
        self._open += not isinstance(request, Detach)
        match request:
            case Reserve():
                self._service.reserve_async(self._slot, request, self._send_late)
            case Fetch():
                self._service.fetch(request, self._send_late)
            case Detach():
                self._service.detach(self._slot)
                self._slot = -1
                if request.number:
                    self._send(Detached(request.number))

    def _handle_if_allowed(self, request: Save | Flush | Check | Resize) -> None:
        if self._rights < (Rights.RULE if isinstance(request, Resize) else Rights.USE):
            self._send(Refusal(_NOT_ALLOWED[self._rights]))
            return
        match request:
            case Save():
                self._walked_for = True
                self._service.save(request, self._send_walked)
            case Flush():
                self._open += 1
                self._service.flush(request, self._send_late)
            case Check():
                self._walked_for = True
                self._service.check(request, self._send_walked)
            case Resize():
                self._send(self._service.resize(request))

    def _send(self, answer: Answer) -> None:
        self._transport.write(pack(answer))

    def _send_walked(self, answer: Saved | Findings) -> None:
        """Until then no more of the peer's requests were read."""
        self._walked_for = False
        self._open += 1
        self._send_late(answer)

    def _send_late(self, answer: Answer) -> None:
        """By then the peer may be gone."""
        self._open -= 1
        if not self._transport.is_closing():
            self._send(answer)
            self._go_on_soon()

    def _greet(self, request: Attach | Observe) -> None:
        try:
            with self._transport.get_extra_info("socket").dup() as connection:
                admission = self._admit(request, connection)
                point("connection.admitted")
                _answer(connection, admission)
                point("connection.answered")
        except OSError as error:
            self._unanswered(error)
            return
        if isinstance(admission.answer, Refusal):
            self._end(admission.answer.reason)
            return
        self._greeted = True
        self._house.gate.greeted(self._caller, self._end)
        self._unpacker.limit(_WATCHER_LIMIT if isinstance(request, Observe) else REQUEST_LIMIT)
        self._late.cancel()

    def _unanswered(self, error: OSError) -> None:
        """The peer has gone, or can not be given the segments.

        A session that had its slot before and left while it attached again says so behind its Attach: it is read on.
        """
        self._free_unused()
        if not isinstance(error, ConnectionError):
            self._end(f"it can not be answered: {error.strerror}")
        elif self._slot < 0:
            self._transport.close()

    def _free_unused(self) -> None:
        """Frees a slot that was given just now, whose segments nobody got. A slot that the session had before stays.

        It has to be done at once: the same session may attach over another connection next, and use the slot.
        """
        if self._slot >= 0 and not self._had_slot:
            self._service.detach(self._slot)
            self._slot = -1

    def _admit(self, request: Attach | Observe, connection: socket.socket) -> Admission:
        if request.build != BUILD:
            return _refuse(f"the daemon is {BUILD!r}, the client {request.build!r}: install the same version")
        try:
            peer = peer_of(connection)
        except ProcessLookupError as error:
            return _refuse(str(error))
        try:
            return self._admit_peer(request, peer)
        except ShmError as error:
            self._free_unused()
            return _refuse(str(error))
        finally:
            os.close(peer.pidfd)

    def _admit_peer(self, request: Attach | Observe, peer: Peer) -> Admission:
        segments = self._service.segments
        self._rights = rights_of(peer, self._access)
        if self._rights < (Rights.WATCH if isinstance(request, Observe) else Rights.USE):
            return _refuse(f"user {peer.uid} may not attach: see access.users and access.groups")
        if isinstance(request, Observe):
            return Admission(self._service.observe(), segments.read_only_descriptors())
        self._had_slot = self._service.has_slot(peer, request)
        if not self._had_slot and _has_gone(self._transport.get_extra_info("socket")):
            raise BrokenPipeError  # its session may have ended: a daemon that died over its slot would leave it taken
        answer = self._service.attach(peer, request)
        if isinstance(answer, Refusal):
            return Admission(answer)
        self._slot, self._ends = answer.slot, self._service.ends(answer.slot)
        return Admission(answer, segments.descriptors())

    def _end(self, why: str) -> None:
        facts = event("peer_refused", why=why)
        complaints, uid = self._house.complaints, self._caller.uid
        complaints.tell(logging.WARNING, uid, "%s: its connection is closed: %s", self._caller, why, extra=facts)
        self._transport.close()


def _answer(connection: socket.socket, admission: Admission) -> None:
    try:
        socket.send_fds(connection, [pack(admission.answer)], list(admission.descriptors))
    finally:
        for descriptor in admission.descriptors:
            os.close(descriptor)


def _has_gone(connection: socket.socket) -> bool:
    """Whether the peer has closed its end."""
    poll = select.poll()
    poll.register(connection.fileno(), 0)  # POLLHUP comes unasked
    return bool(poll.poll(0))


def _refuse(reason: str) -> Admission:
    return Admission(Refusal(reason))
