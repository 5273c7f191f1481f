"""One connection of the control socket: dispatches the requests of a peer and sends the responses."""

from __future__ import annotations

import asyncio

from pagetier.daemon.host.peer_credentials import Rights, caller_of, rights_of
from pagetier.daemon.host.refusals import why_forbidden
from pagetier.daemon.index.hint_requests import EVERY_USER
from pagetier.daemon.server.greeting import Greeter, send_greeting_reply
from pagetier.daemon.server.server_state import ServerState
from pagetier.shm._core import HintKind
from pagetier.shm.failpoints import point
from pagetier.shm.message_codec import Unpacker, pack, read_request
from pagetier.shm.protocol import (
    BUILD,
    GREETING_LIMIT,
    REQUEST_LIMIT,
    Answer,
    Attach,
    Check,
    Describe,
    Description,
    Detach,
    Detached,
    Fetch,
    FetchLocated,
    Findings,
    Flush,
    Forget,
    HintPages,
    Locate,
    Observe,
    ProtocolError,
    Reclaim,
    Refusal,
    Request,
    Reserve,
    Resize,
    Save,
    Saved,
)

_WATCHER_LIMIT = 64 << 10  # bytes of a message from a peer that is not attached
_SLICE_S = 0.002  # then the requests of other connections are handled
_MOST_OPEN = 1024  # requests of one peer without a response: beyond these, nothing is read from it


class Connection(asyncio.BufferedProtocol):
    """One peer. It has to send a greeting before any other request.

    Its requests are handled in short slices, no matter how many it sends. While it does not read its responses, no more
    of its requests are handled.
    """

    def __init__(self, shared: ServerState) -> None:
        self._shared = shared
        self._service = shared.service
        self._access = shared.access
        self._unpacker = Unpacker(_WATCHER_LIMIT)
        self._entered = self._greeted = False
        self._open = self._incomplete = 0
        self._choked = self._waits = self._walked_for = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Counts the connection and starts the timeout for the greeting."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        peer_socket = transport.get_extra_info("socket")
        self._greeter = Greeter(self._service, self._access, peer_socket)
        self._caller = caller_of(peer_socket)
        self._loop = asyncio.get_running_loop()
        self._late = self._loop.call_later(
            self._shared.patience, self._end, f"it sent no greeting within {self._shared.patience:g} s"
        )
        rights = rights_of(self._caller, self._access)
        if why := self._shared.limits.enter(self._caller, rights, self._end):
            self._end(why)
            return
        self._entered = True
        if rights >= Rights.ATTACH:
            self._unpacker.limit(GREETING_LIMIT)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stops counting the connection. The slot stays, because the process may still run."""
        self._late.cancel()
        if self._entered:
            self._shared.limits.greeted(self._caller, self._end)
            self._shared.limits.leave(self._caller, self._end)

    def pause_writing(self) -> None:
        """Stops handling requests of a peer that does not read its responses."""
        self._choked = True

    def resume_writing(self) -> None:
        """Handles requests again: the peer has read its responses."""
        self._choked = False
        self._continue_soon()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Returns where the next bytes are to be received."""
        return self._shared.buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Takes the received bytes."""
        # The buffer is that of all connections, so what is not served at once is copied before the next one receives.
        if self._incomplete or not self._serve_directly(nbytes):
            self._handle_bytes(bytes(self._shared.buffer[:nbytes]))

    def _serve_directly(self, nbytes: int) -> bool:
        """Serves an engine's usual reservation, see Reservations.serve_message(). Returns False for other messages."""
        slot, received, send = self._greeter.slot, self._shared.buffer, self._transport.write
        if slot < 0:
            return False
        served = self._service.reservations.serve_message(slot, self._greeter.ends, received, nbytes, send)
        if served and self._choked:
            self._wait()
        return served

    def _handle_bytes(self, data: bytes) -> None:
        """Handles complete requests. The bytes of incomplete ones are limited for all connections of a process."""
        self._handle_slice(data)
        if self._unpacker.buffered != self._incomplete:
            self._count_incomplete(self._unpacker.buffered)

    def _count_incomplete(self, nbytes: int) -> None:
        self._incomplete = nbytes
        if why := self._shared.limits.count_incomplete(self._caller, self._end, nbytes):
            # Frees the bytes now, because a peer that reads no responses delays the end of its connection.
            self._unpacker, self._incomplete = Unpacker(), 0
            self._end(why)

    def _handle_slice(self, data: bytes) -> None:
        """Handles complete requests for a short time, the rest in later slices: other connections are not delayed."""
        ends = self._loop.time() + _SLICE_S
        try:
            for body in self._unpacker.feed(data):
                self._handle(read_request(body))
                if self._transport.is_closing():
                    return
                # What the unpacker still has is handled in the next slice. Reading pauses until then, so that the
                # kernel's buffer fills and delays the peer, instead of the daemon's memory.
                if self._blocked or self._loop.time() > ends:
                    self._wait()
                    return
        except ProtocolError as error:
            self._reject(str(error))
        self._transport.resume_reading()

    def _wait(self) -> None:
        """Reads nothing until this connection's next slice."""
        self._transport.pause_reading()
        self._waits = True
        self._continue_soon()

    @property
    def _blocked(self) -> bool:
        return self._choked or self._walked_for or self._open >= _MOST_OPEN

    def _continue_soon(self) -> None:
        if self._waits and not self._blocked:
            self._waits = False
            self._loop.call_soon(self._continue)

    def _continue(self) -> None:
        if not self._transport.is_closing():
            self._handle_bytes(b"")

    def _reject(self, why: str) -> None:
        """Closes the connection. Before the greeting, sends the daemon's version first, as versions may differ."""
        if not self._greeted:
            self._send(Refusal(f"the daemon is {BUILD!r}: {why}"))
        self._end(why)

    def _handle(self, request: Request) -> None:
        match request:
            case Reserve() | Fetch() | FetchLocated() | Locate() | Detach() if self._greeter.slot >= 0:
                self._handle_of_engine(request)
            case Attach() | Observe() if not self._greeted:
                self._greet(request)
            case Fetch() | HintPages() | Save() | Flush() | Forget() | Check() | Resize() | Reclaim() if self._greeted:
                self._handle_if_allowed(request)
            case Describe() if self._greeted:
                self._send(Description(request.number, self._service.in_force.described()))
            case _:
                raise ProtocolError(f"{type(request).__name__} is not allowed for this peer, or not yet")

    def _handle_of_engine(self, request: Reserve | Fetch | FetchLocated | Locate | Detach) -> None:
        slot = self._greeter.slot
        # A session may attach over a second connection and detach there. This connection must not touch the slot then.
        if self._service.ends(slot) != self._greeter.ends:
            raise ProtocolError("its slot was released over another connection and may have another owner by now")
        self._open += not isinstance(request, Detach)
        match request:
            case Reserve():
                self._service.reservations.ask(slot, request, self._send_late)
            case Fetch():
                self._service.fetch(request, self._send_late)
            case FetchLocated():
                self._service.fetch_located(request, self._send_late)
            case Locate():
                self._service.locate(request, self._send_late)
            case Detach():
                self._service.detach(slot)
                self._greeter.slot = -1
                if request.number:
                    self._send(Detached(request.number))

    def _handle_if_allowed(self, request: Fetch | HintPages | Save | Flush | Forget | Check | Resize | Reclaim) -> None:
        needs = Rights.MANAGE if isinstance(request, Resize | Reclaim) else Rights.ATTACH
        if self._greeter.rights < needs:
            self._send(Refusal(why_forbidden(self._caller, needs, self._access)))
            return
        match request:
            case Fetch():
                self._open += 1
                self._service.prefetch(self._caller.uid, request, self._send_late)
            case HintPages():
                self._give_hint(request)
            case Save():
                self._walked_for = True
                self._service.save(request, self._send_walked)
            case Flush() | Forget():
                self._open += 1
                self._service.flush(request, self._send_late)
            case Check():
                self._walked_for = True
                self._service.check(request, self._send_walked)
            case Resize() | Reclaim():
                self._send(self._service.manage(request))

    def _give_hint(self, request: HintPages) -> None:
        any_user = self._greeter.rights >= Rights.MANAGE and request.hint == HintKind.UNKEEP
        answer = self._service.hints.give(EVERY_USER if any_user else self._caller.uid, request)
        if request.number:
            self._send(answer)

    def _send(self, answer: Answer) -> None:
        self._transport.write(pack(answer))

    def _send_walked(self, answer: Saved | Findings) -> None:
        """Sends the result of a walk. No more requests of the peer were read before."""
        self._walked_for = False
        self._open += 1
        self._send_late(answer)

    def _send_late(self, answer: Answer) -> None:
        """Sends a response that was not available at once, unless the peer has left."""
        self._open -= 1
        if not self._transport.is_closing():
            self._send(answer)
            self._continue_soon()

    def _greet(self, request: Attach | Observe) -> None:
        try:
            # asyncio cannot send descriptors, so the greeting is answered through the socket itself. Nothing can be in
            # the transport's buffer yet: this is the first message to the peer.
            with self._transport.get_extra_info("socket").dup() as connection:
                reply = self._greeter.authorize(request, connection)
                point("connection.greeted")
                send_greeting_reply(connection, reply)
                point("connection.answered")
        except OSError as error:
            self._handle_unsent(error)
            return
        if isinstance(reply.answer, Refusal):
            self._end(reply.answer.reason)
            return
        self._greeted = True
        self._shared.limits.greeted(self._caller, self._end)
        if isinstance(request, Attach):
            self._unpacker.limit(REQUEST_LIMIT)
        self._late.cancel()

    def _handle_unsent(self, error: OSError) -> None:
        """Ends the greeting of a peer that has left, or to which the segments cannot be sent.

        A session that already had its slot, and left while it attached again, sends a Detach after its Attach. The
        connection is therefore read further.
        """
        self._greeter.free_unused()
        if not isinstance(error, ConnectionError):
            self._end(f"the segments cannot be sent to it: {error.strerror}")
        elif self._greeter.slot < 0:
            self._transport.close()

    def _end(self, why: str) -> None:
        self._shared.log_end(self._caller, why)
        self._transport.close()
