"""The arena of a session, kept mapped for a user that this process cannot wait for, such as a GPU."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import filterfalse
from operator import attrgetter

from pagetier.shm._core import Session


class RetainedArena:
    """Keeps the arena of a session mapped until release(), or until it is dropped.

    An exception of a signal handler may end any function of Python code at its start and after each of its calls, and
    Python drops one that comes in a finalizer. So no function of Python code is between retain_arena() and the moment
    from which on the drop releases the arena, and none is called by the drop.

    Attributes:
        release: Releases the arena, once; further calls have no effect.
    """

    def __init__(self, session: Session) -> None:
        self._retained: list[Session] = []
        self.release: Callable[[], object] = partial(deque, map(Session.release_arena, self._retained), 0)
        self._retained.extend(filterfalse(Session.retain_arena, (session,)))  # retain_arena() returns None

    def keep(self) -> None:
        """Keeps the arena mapped until the process ends, unless it is released already."""
        self._retained.clear()

    __del__ = property(attrgetter("release"))
