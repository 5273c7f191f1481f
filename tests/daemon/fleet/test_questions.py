"""Questions to the fleet: each is answered once, in time, whatever the worker does."""

from __future__ import annotations

import asyncio

import pytest

from pagetier.daemon.common import loop_clock
from pagetier.daemon.fleet.absent_pages import AbsentPages
from pagetier.daemon.fleet.questions import Answered, FleetQuestions
from pagetier.shm._core import pages_to_find
from pagetier.shm.page_rows import PAGES_TO_FIND, PageToFind
from pagetier.shm.protocol import Locate, ProtocolError, Space
from pagetier.tiers.worker_protocol import Command, Find, Found

pytestmark = pytest.mark.usefixtures("virtual_time")
ASK_S = 0.05
SPACE = Space(b"d" * 32, "model", 16)
TWO_PAGES = Locate(7, pages_to_find(b"a" * 32 + b"b" * 32, bytes(8)), (SPACE,))
PAGE = pages_to_find(b"a" * 32, bytes(4))


class Asked:
    """The questions to a fleet whose worker is this object, which notes what it is asked and what becomes of it."""

    def __init__(self, ask_timeout: float = ASK_S) -> None:
        self.commands: list[Find] = []
        self.ends: list[Answered] = []
        self.troubles: list[str] = []
        self.sizes: list[bytes] = []
        self.questions = FleetQuestions(asyncio.get_running_loop(), ask_timeout, self.ended)
        self.questions.send = self.send

    def ended(self, answered: Answered, trouble: str) -> None:
        self.ends.append(answered)
        self.troubles.append(trouble)

    def send(self, command: Command) -> None:
        assert isinstance(command, Find)
        self.commands.append(command)

    def ask(self, request: Locate = TWO_PAGES) -> None:
        self.questions.ask(request, self.sizes.append)


async def test_an_answer_is_passed_on() -> None:
    asked, failed = Asked(), list[dict[str, object]]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failed.append(context))
    asked.ask()
    sizes = (4096).to_bytes(8, "little") + bytes(8)
    asked.questions.found(Found(asked.commands[0].number, sizes, ""))
    assert asked.sizes == [sizes] and asked.ends == [Answered.FOUND]
    await loop_clock.pause(2 * ASK_S)
    assert asked.sizes == [sizes] and asked.questions.counts[Answered.FOUND] == 1 and not failed


async def test_a_late_answer_is_nothing_and_is_ignored_when_it_comes() -> None:
    asked = Asked()
    asked.ask()
    await loop_clock.pause(0.99 * ASK_S)
    assert not asked.sizes and not asked.ends
    await loop_clock.pause(0.02 * ASK_S)
    assert asked.sizes == [bytes(16)] and asked.ends == [Answered.LATE]
    asked.questions.found(Found(asked.commands[0].number, b"\1" * 16, ""))
    assert len(asked.sizes) == 1


async def test_a_failed_or_lost_question_is_answered_at_once() -> None:
    asked = Asked()
    asked.ask()
    asked.ask()
    asked.questions.found(Found(asked.commands[0].number, bytes(16), "the store is gone"))
    asked.questions.lost()
    assert asked.sizes == [bytes(16)] * 2 and asked.ends == [Answered.ERROR] * 2
    assert asked.questions.counts[Answered.LATE] == 0, "an error that comes at once is not late"
    assert asked.troubles == ["the store is gone", "its worker has ended"]


async def test_an_absent_head_is_not_asked_for_again_at_once() -> None:
    asked = Asked()
    asked.ask()
    asked.questions.found(Found(asked.commands[0].number, bytes(16), ""))
    asked.ask()
    assert len(asked.commands) == 1 and asked.sizes == [bytes(16)] * 2
    assert asked.questions.counts[Answered.ABSENT] == 2 and asked.ends == [Answered.ABSENT]


async def test_an_absent_head_is_asked_for_again_while_other_pages_are_found() -> None:
    asked = Asked()
    sizes = bytes(8) + (4096).to_bytes(8, "little")
    for number in range(2):
        asked.ask()
        asked.questions.found(Found(asked.commands[number].number, sizes, ""))
    assert asked.sizes == [sizes] * 2 and asked.ends == [Answered.FOUND] * 2


@pytest.mark.parametrize(
    "request_",
    [
        Locate(1, PAGE + b"a", (SPACE,)),
        Locate(1, PAGE, ()),
        Locate(1, PAGES_TO_FIND.pack([PageToFind(b"a" * 32, 1)]), (SPACE,)),
        Locate(1, PAGE, (Space(b"short", "model", 16),)),
        Locate(1, b"", ()),
    ],
)
async def test_an_invalid_question_is_not_asked(request_: Locate) -> None:
    asked = Asked()
    asked.ask(request_)
    assert not asked.commands and asked.sizes == [bytes(PAGES_TO_FIND.count(request_.pages) * 8)]
    assert asked.questions.counts[Answered.REFUSED] == 1


async def test_an_answer_for_other_pages_is_an_error_of_the_worker_and_leaves_the_question_to_its_time() -> None:
    asked = Asked()
    asked.ask()
    with pytest.raises(ProtocolError):
        asked.questions.found(Found(asked.commands[0].number, bytes(8), ""))
    assert not asked.sizes
    await loop_clock.pause(1.01 * ASK_S)
    assert asked.sizes == [bytes(16)] and asked.ends == [Answered.LATE]


def test_absent_pages_expire_and_are_bounded() -> None:
    absent = AbsentPages()
    absent.add(b"a" * 32 + b"b" * 32, 0.0, 5.0)
    assert absent.has(b"a" * 32, 4.9) and not absent.has(b"a" * 32, 5.0) and not absent.has(b"x" * 32, 0.0)
    absent.add(b"".join(number.to_bytes(32, "little") for number in range(70_000)), 1.0, 8.0)
    assert len(absent) == 1 << 16 and not absent.has(b"b" * 32, 0.0)
    absent.add(b"c" * 32, 9.0, 1.0)
    assert len(absent) == 1
