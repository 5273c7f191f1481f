"""This process as a member: its session with the segments, its link to the daemon, from start() to stop()."""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from collections.abc import Callable
from pathlib import Path

from ..shm._core import Session, ShmError
from ..shm.link import Greeting, Link, LinkError
from ..shm.protocol import BUILD, Answer, Attach, Detach, Reserved
from .keeper import Keeper
from .requests import Attachment, Requests

log = logging.getLogger("pagetier.client")

_TOKEN_BITS = 63
_CHUNK = 64 << 20
_RETIRE_PAUSE_S = 0.001


class Membership:
    """What a client has in one process; a forked child needs one of its own. From any thread.

    session: None until the segments are mapped, and again when a daemon has stopped on purpose. It outlives the link:
    with the daemon down, matching and loading go on.
    """

    def __init__(self, path: Callable[[], Path], name: str) -> None:
        self.session: Session | None = None
        self.attachment: Attachment | None = None
        self.requests = Requests()
        self.attached = threading.Event()
        self._pid = os.getpid()
        self._name = name
        self._token = secrets.randbits(_TOKEN_BITS)
        self._keeper = Keeper(path, self)

    @property
    def foreign(self) -> bool:
        """Whether this is the parent's, seen from a forked child."""
        return self._pid != os.getpid()

    def start(self) -> None:
        """Begins to look for the daemon."""
        self._keeper.start()

    def stop(self, deadline: float) -> None:
        """Lets go of everything: pins, memory, slot. Where a copy goes on for longer, its process's end does it."""
        session, self.session = self.session, None
        attachment, self.attachment = self.attachment, None
        retired = session is None or _retire(session, time.monotonic() + deadline)
        if attachment is not None and retired:
            _say_goodbye(attachment.link, deadline)
        self._keeper.stop()

    def greeting(self) -> Attach:
        """The same token each time, so that the daemon gives back the same slot."""
        return Attach(BUILD, self._token, self._name, self.requests.held())

    def take_up(self, link: Link, greeting: Greeting) -> None:
        """The daemon has answered: the old session goes on if it is about the same segments."""
        try:
            if self.session is None or self.session.segments_id != greeting.welcome.segments_id:
                self.session = _session(greeting)
                if greeting.welcome.populated:
                    threading.Thread(target=_populate, args=(self.session,), daemon=True).start()
        except ShmError as error:
            raise LinkError(str(error)) from error
        finally:
            for descriptor in greeting.descriptors:
                os.close(descriptor)
        self.attachment = Attachment(link, self.session)
        self.attached.set()

    def answered(self, answer: Answer) -> None:
        """An answer came in."""
        if isinstance(answer, Reserved):
            self.requests.answered(answer)

    def lost(self) -> None:
        """The link is gone. A daemon that stopped on purpose wants its memory back."""
        self.attached.clear()
        self.attachment = None
        self.requests.lost()
        if self.session is not None and self.session.closed:
            self.session = None


def _session(greeting: Greeting) -> Session:
    index, locks, arena = greeting.descriptors
    return Session(index, locks, arena, greeting.welcome.slot)


def _retire(session: Session, ends: float) -> bool:
    while not session.retire():
        if time.monotonic() > ends:
            return False
        time.sleep(_RETIRE_PAUSE_S)
    return True


def _say_goodbye(link: Link, deadline: float) -> None:
    try:
        link.send(Detach(), deadline)
    except LinkError as error:
        log.debug("not said goodbye: %s", error)


def _populate(session: Session) -> None:
    """Maps the whole arena ahead of its use, so that no copy has to wait for page faults."""
    for offset in range(0, session.arena_bytes, _CHUNK):
        try:
            session.populate(offset, min(_CHUNK, session.arena_bytes - offset))
        except (OSError, ValueError) as error:
            log.debug("the arena is mapped as it is used: %s", error)
            return
