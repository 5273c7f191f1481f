"""The greeting of a connection: identifies the peer and decides which rights, slot and segments it gets."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Sequence

import msgspec

from pagetier.daemon.config.schema import AccessOptions
from pagetier.daemon.host.host import Host
from pagetier.daemon.host.peer_credentials import Peer, Rights, caller_of, peer_of, rights_of
from pagetier.daemon.host.refusals import why_forbidden, why_unseen
from pagetier.daemon.index.service import Service
from pagetier.shm._core import ShmError
from pagetier.shm.message_codec import pack
from pagetier.shm.protocol import BUILD, Attach, Observe, Refusal, Welcome


class GreetingReply(msgspec.Struct, frozen=True):
    """The response to a greeting, and the descriptors that are sent with it."""

    answer: Welcome | Refusal
    descriptors: Sequence[int] = ()


class Greeter:
    """Answers the greetings of one connection. On the loop's thread only.

    Attributes:
        rights: The rights of the peer, once it has sent a greeting.
        slot: The slot of the peer's session, -1 if it has none.
        ends: How often this slot had been freed when the session got it.
    """

    def __init__(self, service: Service, access: AccessOptions, peer_socket: socket.socket) -> None:
        self._service = service
        self._access = access
        self._socket = peer_socket
        self._had_slot = False
        self.rights = Rights.NOTHING
        self.slot = -1
        self.ends = 0

    def authorize(self, request: Attach | Observe, connection: socket.socket) -> GreetingReply:
        """Returns the response to a greeting that arrived over `connection`. Raises OSError if the peer has left."""
        # Before anything else is read: the other fields may mean something else in another version.
        if request.build != BUILD:
            return _refuse(f"the daemon is {BUILD!r}, the client {request.build!r}: install the same version")
        try:
            peer = peer_of(connection)
        except ProcessLookupError:
            return _refuse(why_unseen(caller_of(connection), Host()))
        try:
            return self._authorize_peer(request, peer)
        except ShmError as error:
            self.free_unused()
            return _refuse(str(error))
        finally:
            os.close(peer.pidfd)

    def _authorize_peer(self, request: Attach | Observe, peer: Peer) -> GreetingReply:
        segments = self._service.segments
        self.rights = rights_of(peer, self._access)
        needs = Rights.WATCH if isinstance(request, Observe) else Rights.ATTACH
        if self.rights < needs:
            return _refuse(why_forbidden(peer, needs, self._access))
        if isinstance(request, Observe):
            return GreetingReply(self._service.observe(), segments.read_only_descriptors())
        self._had_slot = self._service.has_slot(peer, request)
        if not self._had_slot and _has_closed(self._socket):
            # The session may have ended. A slot that is taken for it now would stay taken if this daemon died.
            raise BrokenPipeError
        # The slot is taken before the descriptors are made, since the arena's descriptor carries the slot's lock, which
        # shows after a restart of the daemon whether the process still maps the arena.
        answer = self._service.attach(peer, request)
        if isinstance(answer, Refusal):
            return GreetingReply(answer)
        self.slot, self.ends = answer.slot, self._service.ends(answer.slot)
        return GreetingReply(answer, self._service.descriptors(answer.slot, peer))

    def free_unused(self) -> None:
        """Frees a slot that was taken by this greeting, if the peer did not get the segments. An older slot stays.

        This must be done at once: the same session may attach over another connection next, and use the slot.
        """
        if self.slot >= 0 and not self._had_slot:
            self._service.detach(self.slot)
            self.slot = -1


def send_greeting_reply(connection: socket.socket, reply: GreetingReply) -> None:
    """Sends the response with its descriptors and closes them. Raises OSError if the peer has left."""
    try:
        # In one message with the response, so that a client never has the one without the other.
        socket.send_fds(connection, [pack(reply.answer)], list(reply.descriptors))
    finally:
        # They are this process's copies. A lock on the arena belongs to the open file, which the peer has now.
        for descriptor in reply.descriptors:
            os.close(descriptor)


def _has_closed(connection: socket.socket) -> bool:
    """Returns whether the peer has closed its end."""
    poll = select.poll()
    poll.register(connection.fileno(), 0)  # POLLHUP needs no request
    return bool(poll.poll(0))


def _refuse(reason: str) -> GreetingReply:
    return GreetingReply(Refusal(reason))
