"""The usual reservation, which the core reads from its message, and those that are left to the decoder in Python."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import struct
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anonymous_segments import DAY_NS
from eventually import PATIENCE_S
from in_process_server import Peer, serving
from learning_index import FRAME, LearningIndex
from page_reservations import outcomes_of
from pagetier.client import Client, Namespace
from pagetier.daemon.common import loop_clock
from pagetier.daemon.common.log_throttle import LogThrottle
from pagetier.daemon.common.namespaces import printable
from pagetier.daemon.config.schema import AccessOptions, Config
from pagetier.daemon.index import reservations
from pagetier.daemon.index.quotas import NO_LIMIT
from pagetier.daemon.index.reservations import Reservations, wrong_request
from pagetier.daemon.index.service import Service
from pagetier.daemon.server.connection import Connection
from pagetier.daemon.server.limits import ConnectionLimits
from pagetier.daemon.server.server_state import ServerState
from pagetier.daemon.status.publisher import StatusPublisher
from pagetier.shm._core import KEY_BYTES, ReserveOutcome, page_requests
from pagetier.shm.message_codec import LENGTH, pack, read_answer, read_reserve, read_reserved
from pagetier.shm.protocol import BUILD, Attach, Describe, Description, Prompt, Reserve, Reserved, Space
from pagetier.shm.segments import Segments

DIGEST = bytes(range(KEY_BYTES))
SPACE = Space(DIGEST, "model 00112233", 16)
KEYS = os.urandom(4 * KEY_BYTES)


def request(sizes: Sequence[int] = (FRAME,), space: Space = SPACE, number: int = 1, **fields: object) -> Reserve:
    """Returns a request for pages of these sizes."""
    pages = page_requests(KEYS[: len(sizes) * KEY_BYTES], struct.pack(f"<{len(sizes)}Q", *sizes))
    usual = {"part": 0, "parts": 1, "pages": pages, "prompts": (Prompt(0, b"", 0),)}
    return Reserve(number, space, **{**usual, **fields})  # type: ignore[arg-type]


def read_directly(engine: LearningIndex, message: bytes, most_frames: int = NO_LIMIT) -> Reserved | None:
    """Returns the response of the core, None if it leaves the message to the decoder."""
    served = engine.owner.serve_reserve(engine.slot, DAY_NS, most_frames, len(message), message)
    if served is None:
        return None
    response, frames, granted, granted_bytes, full, oversized = served
    answer = read_answer(response[LENGTH.size :])
    assert isinstance(answer, Reserved)
    outcomes = outcomes_of(answer)
    assert granted == outcomes.count(ReserveOutcome.GRANTED) and full == outcomes.count(ReserveOutcome.REFUSED_FULL)
    assert (oversized >= 0) == (ReserveOutcome.REFUSED_SIZE in outcomes)
    assert granted_bytes <= 32 * FRAME and frames * FRAME >= granted_bytes, "a page that was refused counts nothing"
    return answer


def decoded(engine: LearningIndex, asked: Reserve) -> Reserved:
    """Returns the response that the decoder's request gets."""
    space = asked.space
    number = engine.owner.space(space.digest, printable(space.name), space.page_tokens, space.window, space.group)
    response, *_ = engine.owner.reserve(engine.slot, number, DAY_NS, 0, pack(asked))
    return read_reserved(response[LENGTH.size :])


def described(engine: LearningIndex) -> tuple[object, ...]:
    """Returns what the index says of itself, without times."""
    return engine.owner.header(), [space._replace(used_ns=0) for space in engine.owner.spaces()]


def requests() -> st.SearchStrategy[Reserve]:
    """Returns requests that are mostly valid and usual."""
    sizes = st.lists(st.sampled_from([0, 1, FRAME, FRAME + 1, 33 * FRAME, 2**63, 2**64 - 1]), min_size=1, max_size=4)
    spaces = st.builds(
        Space,
        st.sampled_from([DIGEST, bytes(KEY_BYTES)]),
        st.sampled_from(["", "model", "m" * 300, "n\u00e9", "tab\t", "nul\0"]),
        st.sampled_from([0, 16, 2**16, 2**32 - 1]),
        st.sampled_from([0, 3, 255]),
        st.sampled_from([0, 512]),
    )
    parents, depths = st.sampled_from([b"", DIGEST, bytes(KEY_BYTES)]), st.integers(-1, 2**25)
    prompts = [st.builds(Prompt, st.just(begin), parents, depths) for begin in range(4)]
    prompts_of_request = st.one_of(st.none(), st.just(()), st.tuples(prompts[0]), st.tuples(*prompts))
    parts = st.sampled_from([(0, 1), (0, 2), (1, 2), (31, 32)])
    return st.builds(
        lambda sizes, space, part, prompts, **fields: request(
            sizes, space, part=part[0], parts=part[1], prompts=prompts and prompts[: len(sizes)], **fields
        ),
        *(sizes, spaces, parts),
        number=st.sampled_from([0, 127, 128, 2**16, 2**32, 2**64 - 1]),
        division=st.sampled_from([0, 7, 2**32 - 1]),
        prompts=prompts_of_request,
    )


@given(requests())
def test_what_the_core_reads_is_what_the_decoder_reads(asked: Reserve) -> None:
    assert not wrong_request(asked)
    first, second = LearningIndex(32, learns=False), LearningIndex(32, learns=False)
    for _ in range(2):  # the second time the pages are being written
        answer = read_directly(first, pack(asked))
        assert answer in (None, decoded(second, asked))
        assert answer is None or described(first) == described(second)


@pytest.mark.parametrize(
    "asked",
    [
        request(hint=3, hint_ttl=60.0),
        request((FRAME,), Space(DIGEST, "n\u00e9", 16)),
        request((FRAME,), Space(DIGEST, "tab\t", 16)),
        request(prompts=(Prompt(1),)),
        request(part=1, parts=1),
        request(part=0, parts=33),
        request(()),
    ],
)
def test_rare_and_invalid_requests_are_left_to_the_decoder(asked: Reserve) -> None:
    engine = LearningIndex(32, learns=False)
    before = described(engine)
    assert read_directly(engine, pack(asked)) is None
    assert described(engine) == before


def test_only_a_whole_message_is_read() -> None:
    engine, message = LearningIndex(32, learns=False), pack(request())
    for end in range(len(message)):
        assert read_directly(engine, message[:end]) is None
        assert read_directly(engine, LENGTH.pack(end) + message[LENGTH.size :][:end]) is None or end == len(message) - 4
    assert read_directly(engine, message + b"\0") is None
    assert engine.owner.serve_reserve(engine.slot, DAY_NS, NO_LIMIT, len(message) + 1, message) is None


@pytest.mark.parametrize(("sizes", "least"), [((1,), 1), ((FRAME,), 1), ((FRAME, FRAME + 1), 3)])
def test_pages_that_may_exceed_the_quota_are_left_to_the_decoder(sizes: tuple[int, ...], least: int) -> None:
    engine = LearningIndex(32, learns=False)
    assert read_directly(engine, pack(request(sizes)), least - 1) is None
    assert read_directly(engine, pack(request(sizes)), least) is not None


def test_what_a_client_stores_is_read_directly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Reservations, "ask", None)
    space = Namespace(model="org/model", dtype="bfloat16", page_tokens=16)
    with serving(tmp_path) as socket, Client(socket, timeout=PATIENCE_S) as client:
        assert client.wait_attached(PATIENCE_S)
        keys = space.keys(range(64))
        assert client.store(keys, bytes(4 * FRAME)).stored == 4
        assert client.store(keys[1:], bytes(3 * FRAME)).present == 3
        assert client.store(keys[3:], bytes(FRAME), timeout=PATIENCE_S).present == 1


@pytest.mark.parametrize("sizes", [(65 * FRAME,), (0,), (32 * FRAME, 33 * FRAME), (FRAME, FRAME)])
def test_both_ways_answer_alike(tmp_path: Path, sizes: tuple[int, ...]) -> None:
    """Messages that arrive together are decoded."""
    answers = []
    for way in ("direct", "decoded"):
        (tmp_path / way).mkdir()
        with serving(tmp_path / way) as socket, Peer(socket) as peer:
            peer.attach()
            if way == "direct":
                answers.append(peer.ask(request(sizes)))
            else:
                assert isinstance(peer.ask(Describe(7), request(sizes)), Description)
                answers.append(peer.answer())
    assert answers[0] == answers[1]
    assert isinstance(answers[0], Reserved)
    assert bool(answers[0].reason) == (ReserveOutcome.GRANTED not in outcomes_of(answers[0]) or sum(sizes) > 64 * FRAME)


def test_a_request_without_pages_is_answered(tmp_path: Path) -> None:
    with serving(tmp_path) as socket, Peer(socket) as peer:
        peer.attach()
        assert peer.ask(request(prompts=(Prompt(0, DIGEST, 3),), pages=b"")) == Reserved(1, b"")


@pytest.mark.parametrize("sizes", [(0, FRAME + 1), (FRAME, 2**64 - 1), (33 * FRAME, 34 * FRAME), (FRAME,)])
def test_the_size_of_the_first_page_that_never_fits_is_said(sizes: tuple[int, ...]) -> None:
    engine, message = LearningIndex(32, learns=False), pack(request(sizes))
    usual = engine.owner.serve_reserve(engine.slot, DAY_NS, NO_LIMIT, len(message), message)
    assert usual is not None and usual[5] == next((size for size in sizes if not 0 < size <= 32 * FRAME), -1)


def receive(connection: Connection, message: bytes) -> None:
    """Does what the event loop does with a message that arrives alone."""
    connection.get_buffer(-1)[: len(message)] = message
    connection.buffer_updated(len(message))


async def responses_before_a_pause(segments: Segments) -> int:
    """Returns the number of reservations that are served for a peer that reads no response."""
    service = Service(segments, Config(), StatusPublisher(segments.owner), asyncio.get_running_loop())
    service.open_to_engines()
    throttle, buffer = LogThrottle(logging.getLogger(__name__)), memoryview(bytearray(1 << 16))
    state = ServerState(service, AccessOptions(), ConnectionLimits(), throttle, buffer)
    ours, theirs = socket.socketpair()
    with theirs:
        transport, connection = await asyncio.get_running_loop().connect_accepted_socket(
            lambda: Connection(state), ours
        )
        receive(connection, pack(Attach(BUILD, 1, "silent")))
        while not transport.is_reading():  # until its next turn, if attaching took longer than a turn
            await loop_clock.give_way()
        number = 0
        while transport.is_reading() and number < 1 << 16:
            receive(connection, pack(request(number=number)))
            number += 1
        transport.abort()
        await loop_clock.give_way()
    service.close()
    return number


def test_a_peer_that_reads_no_response_is_not_read_either(segments: Segments, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Reservations, "ask", None)
    assert 1 < asyncio.run(responses_before_a_pause(segments)) < 1 << 16


async def decodings(segments: Segments, monkeypatch: pytest.MonkeyPatch, *sizes: int) -> tuple[int, int, int]:
    """Returns how often a store with a fleet is decoded, the bytes queued for the fleet, and the frames of its rate."""
    service = Service(segments, Config(), StatusPublisher(segments.owner), asyncio.get_running_loop())
    service.open_to_engines()
    slot = segments.owner.attach(os.getpid(), 0, 0, 1, "engine")
    decoder = Mock(wraps=read_reserve)
    monkeypatch.setattr(reservations, "read_reserve", decoder)
    service.fleet.writes.enabled = True
    message, sent = pack(request(sizes)), list[bytes]()
    given = memoryview(message + b"of another message")
    assert service.reservations.serve_message(slot, service.ends(slot), given, len(message), sent.append)
    answer = read_answer(sent[0][LENGTH.size :])
    assert isinstance(answer, Reserved) and bool(answer.reason) == (sum(sizes) > 64 * FRAME)
    service.close()
    return decoder.call_count, service.fleet.writes.queued_bytes, service.disk.write_behind.stores.frames


@pytest.mark.parametrize(
    ("sizes", "granted"), [((FRAME, FRAME), 2), ((32 * FRAME, 33 * FRAME), 32), ((FRAME, 2**62), 1)]
)
def test_a_store_is_decoded_once_for_the_fleet_and_not_for_its_reason(
    segments: Segments, monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, ...], granted: int
) -> None:
    """Pages that were refused, however large, count neither for the fleet nor for the rate of stores."""
    assert asyncio.run(decodings(segments, monkeypatch, *sizes)) == (1, granted * FRAME, granted)
