"""A client of a real daemon: stored pages are loaded with exact bytes, in this process and in others, or are misses."""

from __future__ import annotations

import pickle
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

from child_process import in_child
from eventually import PATIENCE_S, eventually
from keyed_pages import SPACE, assert_exact, found, in_memory, page_of, pages_of, prompt, store
from pagetier.client import Client, Keys, Outcome
from pagetier.client.adapters import MatchHandle, Part, adopt, reserve_async
from running_daemon import RunningDaemon, namespace

SIZE, FRAME, FRAMES = 100_000, 65_536, 256
KEYS, OTHERS = prompt(0, 10), prompt(1, FRAMES)
PAGES = np.stack(pages_of(KEYS, SIZE))
pytestmark = pytest.mark.usefixtures("empty_daemon")


@pytest.mark.parametrize("form", [bytes, bytearray, list, np.asarray], ids=lambda form: form.__name__)
def test_stored_pages_are_loaded(client: Client, form: Any) -> None:
    given = [page.tobytes() for page in PAGES] if form is list else form(PAGES)
    assert client.store(KEYS, given).outcomes == [Outcome.STORED] * 10
    assert client.store(KEYS, given).outcomes == [Outcome.PRESENT] * 10
    out = np.zeros_like(PAGES)
    with client.match(KEYS) as match:
        assert len(match) == 10
        assert client.load(match, out) == 10
        assert client.load(match, out[4:6], start_page=4) == 2
    assert np.array_equal(out, PAGES)
    assert client.load(match, out) == 0, "the match was released"


def test_a_client_shows_its_socket_and_whether_it_is_attached(daemon: RunningDaemon) -> None:
    nowhere = daemon.socket.with_name("nowhere.sock")
    with Client(nowhere) as client:
        assert repr(client) == f"<Client not attached, {nowhere}>"
    with Client(daemon.socket) as client:
        assert client.wait_attached(PATIENCE_S)
        assert repr(client).startswith(f"<Client attached, {daemon.socket}, slot ")
    assert repr(client) == f"<Client closed, {daemon.socket}>"


def test_a_match_ends_at_the_first_missing_page(client: Client) -> None:
    store(client, KEYS[:4])
    store(client, KEYS[6:8])
    assert in_memory(client, KEYS) == 4


def test_buffers_of_another_size_than_the_page_are_a_miss(client: Client) -> None:
    store(client, KEYS, SIZE)
    with client.match(KEYS) as match:
        assert client.load(match, [bytearray(SIZE), bytearray(SIZE - 1), bytearray(SIZE)]) == 1
        assert client.load(match, [bytearray(SIZE + 1)]) == 0
        assert client.load(match, []) == 0


def test_invalid_arguments_raise_and_change_nothing(client: Client) -> None:
    keys = KEYS[:3]
    with pytest.raises(ValueError, match=r"2 buffers|number"):
        client.store(keys, [b"x", b"y"])
    with pytest.raises(TypeError):
        client.store(keys, ["x", "y", "z"])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="sizes"):
        client.reserve(keys, [1, 2])
    with pytest.raises(ValueError, match="part"):
        Part(3, 3)
    with pytest.raises(ValueError, match="keys have 32 bytes"):
        Keys(SPACE, bytes(33))
    refused = client.store(keys[:1], np.zeros(17 << 20, np.uint8))
    assert refused.refused == 1 and "set a larger arena.size" in refused.reason
    assert client.store(keys[:0], []).outcomes == []
    assert store(client, keys).stored == 3


def test_a_prompt_larger_than_the_arena_keeps_its_head_and_reports_the_rest(client: Client) -> None:
    keys = prompt(0, 300)
    result = client.reserve(keys, FRAME).publish()
    assert (result.stored, result.refused) == (FRAMES, 44)
    assert result.outcomes[:FRAMES] == [Outcome.STORED] * FRAMES
    assert in_memory(client, keys) == FRAMES
    assert client.reserve(OTHERS[:100], FRAME).publish().stored == 100
    assert in_memory(client, OTHERS) == 100


def test_pages_in_use_are_not_evicted(client: Client) -> None:
    keys = prompt(0, 100)
    store(client, keys, FRAME)
    with client.match(keys) as match:
        assert client.reserve(OTHERS, FRAME).publish().stored == FRAMES - 100
        out = np.zeros((100, FRAME), np.uint8)
        assert client.load(match, out) == 100
        assert_exact(keys, out)


def test_pages_of_a_reservation_may_be_published_and_abandoned_one_by_one(client: Client) -> None:
    keys = KEYS[:5]
    with client.reserve(keys, SIZE) as reservation:
        for page in range(5):
            reservation.write(page, PAGES[page])
        assert reservation.publish(np.array([0, 1])).stored == 5, "open pages still count as stored"
        assert in_memory(client, keys) == 2
        reservation.abandon(np.array([1, 3]))
        assert reservation.publish(np.array([2, 3])).refused == 1
        assert [outcome.name for outcome in reservation.publish().outcomes].index("REFUSED") == 3
    assert found(client, keys[:3], SIZE) == in_memory(client, keys) == 3


def test_kept_pages_are_neither_found_nor_granted_to_others(daemon: RunningDaemon, client: Client) -> None:
    with daemon.client() as other:
        with other.reserve(KEYS, SIZE) as reservation:
            reservation.keep()
        assert in_memory(client, KEYS) == 0
        assert store(client, KEYS).pending == 10
    assert eventually(lambda: store(client, KEYS).stored == 10)


def test_unpublished_pages_are_never_found(client: Client) -> None:
    with client.reserve(KEYS, SIZE) as reservation:
        reservation.write(0, page_of(KEYS[0], SIZE))
        assert in_memory(client, KEYS) == 0
    assert in_memory(client, KEYS) == 0
    promise = reserve_async(client, KEYS, SIZE)
    del promise
    assert store(client, KEYS).refused == 0


def test_a_match_is_handed_to_another_process(daemon: RunningDaemon, client: Client) -> None:
    def adopted(handover: bytes, pages: int) -> None:
        out = np.zeros((pages, SIZE), np.uint8)
        with Client(daemon.socket) as other:
            assert other.wait_attached(PATIENCE_S)
            with adopt(other.session, pickle.loads(handover)) as match:
                assert len(match) == other.load(match, out) == pages
        assert_exact(KEYS, out)

    store(client, KEYS, SIZE)
    with client.match(KEYS) as match:
        small = pickle.dumps(match)
        assert len(small) < 300 and isinstance(pickle.loads(small), MatchHandle)
        assert in_child(lambda: adopted(small, 10)) == 0
    daemon.drop_all_pages()
    assert in_child(lambda: adopted(small, 0)) == 0, "the pages left memory before the adoption"


def test_a_page_is_readable_when_all_its_parts_are_stored(daemon: RunningDaemon, client: Client) -> None:
    keys, parts = KEYS[:3], [Part(index, 4) for index in range(4)]
    with ExitStack() as ranks:
        reservations = [ranks.enter_context(daemon.client()).reserve(keys, SIZE, part) for part in parts]
        assert [len(reservation.granted) for reservation in reservations] == [3] * 4
        for part, reservation in zip(parts, reservations, strict=True):
            assert in_memory(client, keys) == 0
            for page, content in enumerate(pages_of(keys, SIZE, part)):
                reservation.write(page, content, part.index * len(content))
            assert reservation.publish().stored == 3
    assert found(client, keys, SIZE) == 3


def test_threads_share_a_client(client: Client) -> None:
    def work(seed: int) -> None:
        for number in np.random.default_rng(seed).integers(0, 12, 60).tolist():
            keys = prompt(number, 6)
            found(client, keys, 20_000)
            store(client, keys, 20_000)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(8)))


def test_two_clients_of_one_process_do_not_share_pins(daemon: RunningDaemon, client: Client) -> None:
    store(client, KEYS, SIZE)
    with daemon.client() as other, client.match(KEYS) as match:
        other.match(KEYS).release()
        other.reserve(OTHERS, FRAME).publish()
        out = np.zeros_like(PAGES)
        assert client.load(match, out) == 10
        assert np.array_equal(out, PAGES)


def test_a_namespace_is_flushed_and_no_other(client: Client) -> None:
    ours, others = (namespace(salt=salt).keys(range(64)) for salt in ("ours", "others"))
    for keys in (ours, others):
        store(client, keys)
    assert client.flush(ours.namespace)
    assert (in_memory(client, ours), in_memory(client, others)) == (0, 4)
    assert client.flush(ours.namespace), "the namespace has no pages any more"
    assert store(client, ours).stored == 4


def test_a_first_flush_waits_for_the_attachment(daemon: RunningDaemon, client: Client) -> None:
    for _ in range(10):
        store(client, KEYS)
        with Client(daemon.socket, timeout=PATIENCE_S) as fresh:
            assert fresh.flush(SPACE)
        assert in_memory(client, KEYS) == 0


def test_a_flush_keeps_pages_in_use_and_reports_it(client: Client) -> None:
    store(client, KEYS)
    with client.match(KEYS[:1]):
        assert not client.flush(SPACE)
        assert in_memory(client, KEYS) == 1
    assert client.flush(SPACE)
    assert in_memory(client, KEYS) == 0


def test_a_flush_without_a_response_delays_no_other_call(daemon: RunningDaemon, client: Client) -> None:
    """A flush waits for the disk, so a late response does not count as a late daemon: stores are still requested."""
    daemon.signal(signal.SIGSTOP)
    assert not client.flush(SPACE, 0.05)
    assert not client.flush(SPACE, 0.0)
    daemon.signal(signal.SIGCONT)
    assert store(client, KEYS, timeout=PATIENCE_S).stored == 10
    assert eventually(lambda: not client._attachment.requests._strays), "the background thread has read the responses"


def test_without_a_daemon_nothing_is_flushed() -> None:
    with Client("/nowhere/pagetier.sock") as client:
        assert not client.flush(SPACE)
