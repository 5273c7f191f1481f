"""Asks the fleet which pages it has, for engines: each request is answered within `remote.ask_timeout`."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from enum import Enum

import msgspec

from pagetier.daemon.common.histogram import Histogram
from pagetier.daemon.common.namespaces import wrong_space
from pagetier.daemon.fleet.absent_pages import ABSENT_S, AbsentPages
from pagetier.daemon.workers.worker_process import CommandSender, no_worker
from pagetier.shm._core import KEY_BYTES, spaces_below
from pagetier.shm.page_rows import PAGE_SIZES, PAGES_TO_FIND, PageToFind
from pagetier.shm.protocol import Locate, ProtocolError, Space
from pagetier.tiers.worker_protocol import Find, Found

_PROBE = Locate(0, PAGES_TO_FIND.pack([PageToFind(bytes(KEY_BYTES), 0)]), (Space(bytes(KEY_BYTES), "probe", 1),))


class Answered(Enum):
    """What became of a question. LATE: no answer came in time; ERROR: the fleet cannot answer; REFUSED: not asked."""

    FOUND = "found"
    ABSENT = "absent"
    LATE = "late"
    ERROR = "errors"
    REFUSED = "refused"


Ended = Callable[[Answered, str], None]
"""Takes what became of a question, and why the fleet failed, "" if it did not."""


class _Question(msgspec.Struct, eq=False):
    """A question on its way.

    Attributes:
        pages: The pages, rows of PAGES_TO_FIND.
        reply: Takes their sizes; None once the question was answered.
        ended: Takes what became of it and why the fleet failed, before the reply.
        asked_at: When it was asked.
        timer: Answers it when its time is over.
    """

    pages: bytes
    reply: Callable[[bytes], None] | None
    ended: Ended
    asked_at: float
    timer: asyncio.TimerHandle


class FleetQuestions:
    """The questions to the fleet. On the loop's thread only.

    Attributes:
        send: Sends the worker a command.
        ask_timeout: Seconds until a question is answered with "absent".
        absent: Pages that the fleet did not have a moment ago.
        counts: The number of questions by what became of them.
        seconds: How long the answers took.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, ask_timeout: float, ended: Ended) -> None:
        """Takes `ended`, called with what became of each question that was asked, and why the fleet failed."""
        self._loop = loop
        self._ended = ended
        self._numbers = itertools.count(1)
        self._questions: dict[int, _Question] = {}
        self.send: CommandSender = no_worker
        self.ask_timeout = ask_timeout
        self.absent = AbsentPages()
        self.counts = dict.fromkeys(Answered, 0)
        self.seconds = Histogram()

    def ask(self, request: Locate, reply: Callable[[bytes], None]) -> None:
        """Asks which pages the fleet has; `reply` takes their sizes once, maybe before the call returns."""
        if not request.pages or not _are_sound(request.pages, request.table):
            self.refuse(request, reply)
        elif self.absent.has(_first_key(request.pages), self._loop.time()):
            self._count(Answered.ABSENT)
            reply(_nothing(request.pages))
        else:
            self._ask(request, reply, self._ended)

    def refuse(self, request: Locate, reply: Callable[[bytes], None]) -> None:
        """Answers that nothing is there, without asking."""
        self._count(Answered.REFUSED)
        reply(_nothing(request.pages))

    def probe(self, ended: Ended) -> None:
        """Asks for a page that does not exist, to learn whether the fleet answers; `ended` takes what became of it."""
        self._ask(_PROBE, lambda sizes: None, ended)

    def found(self, report: Found) -> None:
        """Handles an answer of the worker, which may come after the question's time.

        Raises:
            ProtocolError: It does not fit the question.
        """
        question = self._questions.get(report.number)
        if question is None:
            return
        if len(report.sizes) != len(_nothing(question.pages)):
            raise ProtocolError("an answer for another number of pages")  # lost() answers the question
        del self._questions[report.number]
        if question.reply is None:
            return
        self.seconds.add(self._loop.time() - question.asked_at)
        if report.reason:
            self._fail(question, Answered.ERROR, report.reason)
            return
        if any(report.sizes):
            self._end(question, Answered.FOUND, report.sizes)
            return
        # Not if only the first page is absent: one group of a model may lack its first page, and others have theirs.
        self.absent.add(_first_key(question.pages), self._loop.time(), ABSENT_S)
        self._end(question, Answered.ABSENT, report.sizes)

    def lost(self) -> None:
        """Answers all questions: the worker is gone."""
        questions, self._questions = self._questions, {}
        for question in questions.values():
            if question.reply is not None:
                self._fail(question, Answered.ERROR, "its worker has ended")

    def _ask(self, request: Locate, reply: Callable[[bytes], None], ended: Ended) -> None:
        number = next(self._numbers)
        timer = self._loop.call_later(self.ask_timeout, self._late, number)
        self._questions[number] = _Question(request.pages, reply, ended, self._loop.time(), timer)
        self.send(Find(number, request.pages, request.table))

    def _late(self, number: int) -> None:
        self._fail(self._questions.pop(number), Answered.LATE, "it did not answer within remote.ask_timeout")

    def _fail(self, question: _Question, answered: Answered, why: str) -> None:
        self._end(question, answered, _nothing(question.pages), why)

    def _end(self, question: _Question, answered: Answered, sizes: bytes, trouble: str = "") -> None:
        question.timer.cancel()
        reply, question.reply = question.reply, None
        self._count(answered)
        question.ended(answered, trouble)
        if reply is not None:
            reply(sizes)

    def _count(self, answered: Answered) -> None:
        self.counts[answered] += 1


def _are_sound(pages: bytes, table: tuple[Space, ...]) -> bool:
    """Returns whether these are rows of PAGES_TO_FIND with namespaces of the table, which is valid."""
    return PAGES_TO_FIND.is_whole(pages) and spaces_below(pages, len(table)) and not any(map(wrong_space, table))


def _first_key(pages: bytes) -> bytes:
    return PAGES_TO_FIND.row(pages, 0).key


def _nothing(pages: bytes) -> bytes:
    return PAGE_SIZES.zeros(PAGES_TO_FIND.count(pages))
