"""A client of a real daemon: stored pages are loaded with exact bytes, in this process and in others, or are misses."""

from __future__ import annotations

import pickle
import signal
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from pagetier.client import Client, Keys, MatchHandle, Outcome, Part
from running_daemon import RunningDaemon, eventually, namespace
from spawned_process import elsewhere, load_handovers, write_part

PAGE = 100_000
SPACE = namespace()


def some_pages(count: int, seed: int, nbytes: int = PAGE) -> Any:
    """Returns pages of random bytes."""
    return np.random.default_rng(seed).integers(0, 256, (count, nbytes), dtype=np.uint8)


def some_keys(count: int, seed: int = 0) -> Keys:
    """Returns the keys of a prompt with this number of pages."""
    return SPACE.keys(range(seed * 100_000, seed * 100_000 + 16 * count))


@pytest.fixture
def daemon() -> Iterator[RunningDaemon]:
    """Runs a daemon for one test."""
    with RunningDaemon() as running:
        yield running


@pytest.fixture
def client(daemon: RunningDaemon) -> Iterator[Client]:
    """Returns a client that is attached to the daemon."""
    with daemon.client() as attached:
        yield attached


@pytest.mark.parametrize("form", [bytes, bytearray, list, np.asarray], ids=lambda form: form.__name__)
def test_stored_pages_are_loaded(client: Client, form: Any) -> None:
    pages, keys = some_pages(10, 1), some_keys(10)
    given = [page.tobytes() for page in pages] if form is list else form(pages)
    assert client.store(keys, given).outcomes == [Outcome.STORED] * 10
    assert client.store(keys, given).outcomes == [Outcome.PRESENT] * 10
    out = np.zeros_like(pages)
    with client.match(keys) as match:
        assert len(match) == 10
        assert client.load(match, out) == 10
        assert client.load(match, out[4:6], start_page=4) == 2
    assert np.array_equal(out, pages)
    assert client.load(match, out) == 0, "the match was released"


def test_a_match_ends_at_the_first_missing_page(client: Client) -> None:
    keys = some_keys(10)
    client.store(keys[:4], some_pages(4, 2))
    client.reserve(keys[6:8], PAGE).publish()
    with client.match(keys) as match:
        assert len(match) == 4


def test_buffers_of_another_size_than_the_page_are_a_miss(client: Client) -> None:
    keys = some_keys(3)
    client.store(keys, some_pages(3, 3))
    with client.match(keys) as match:
        assert client.load(match, [bytearray(PAGE), bytearray(PAGE - 1), bytearray(PAGE)]) == 1
        assert client.load(match, [bytearray(PAGE + 1)]) == 0
        assert client.load(match, []) == 0


def test_invalid_arguments_raise_and_change_nothing(client: Client) -> None:
    keys = some_keys(3)
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
    assert client.store(some_keys(0), []).outcomes == []
    assert client.store(keys, some_pages(3, 4)).stored == 3


def test_a_prompt_larger_than_the_arena_keeps_its_head_and_reports_the_rest(client: Client) -> None:
    keys = some_keys(300)
    result = client.reserve(keys, 65536).publish()
    assert (result.stored, result.refused) == (256, 44)
    assert result.outcomes[:256] == [Outcome.STORED] * 256
    with client.match(keys) as match:
        assert len(match) == 256
    newer = some_keys(100, seed=1)
    assert client.reserve(newer, 65536).publish().stored == 100
    with client.match(newer) as match:
        assert len(match) == 100


def test_pages_in_use_are_not_evicted(client: Client) -> None:
    keys = some_keys(100)
    pages = some_pages(100, 5, 65536)
    client.store(keys, pages)
    with client.match(keys) as match:
        assert client.reserve(some_keys(256, seed=1), 65536).publish().stored == 156
        out = np.zeros_like(pages)
        assert client.load(match, out) == 100
        assert np.array_equal(out, pages)


def test_pages_of_a_reservation_may_be_published_and_abandoned_one_by_one(client: Client) -> None:
    keys, pages = some_keys(5, seed=40), some_pages(5, 40)
    with client.reserve(keys, PAGE) as reservation:
        for page in range(5):
            reservation.write(page, pages[page])
        assert reservation.publish(np.array([0, 1])).stored == 5, "open pages still count as stored"
        with client.match(keys) as match:
            assert len(match) == 2
        reservation.abandon(np.array([1, 3]))
        assert reservation.publish(np.array([2, 3])).refused == 1
        assert [outcome.name for outcome in reservation.publish().outcomes].index("REFUSED") == 3
    with client.match(keys) as match:
        assert len(match) == 3
        out = np.zeros_like(pages[:3])
        assert client.load(match, out) == 3
    assert np.array_equal(out, pages[:3])


def test_kept_pages_are_neither_found_nor_granted_to_others(daemon: RunningDaemon, client: Client) -> None:
    keys = some_keys(2, seed=41)
    with daemon.client() as other:
        with other.reserve(keys, PAGE) as reservation:
            reservation.keep()
        with client.match(keys) as match:
            assert len(match) == 0
        assert client.store(keys, some_pages(2, 41)).pending == 2
    assert eventually(lambda: client.store(keys, some_pages(2, 41)).stored == 2)


def test_unpublished_pages_are_never_found(client: Client) -> None:
    keys = some_keys(4)
    with client.reserve(keys, PAGE) as reservation:
        reservation.write(0, some_pages(1, 6))
        with client.match(keys) as match:
            assert len(match) == 0
    with client.match(keys) as match:
        assert len(match) == 0
    promise = client.reserve_async(keys, PAGE)
    del promise
    assert client.store(keys, some_pages(4, 7)).refused == 0


def test_a_match_is_handed_to_another_process(daemon: RunningDaemon, client: Client) -> None:
    here = elsewhere(load_handovers, daemon.socket, PAGE)
    here.recv()
    keys, pages = some_keys(5), some_pages(5, 8)
    client.store(keys, pages)
    with client.match(keys) as match:
        small = pickle.dumps(match)
        assert len(small) < 300 and isinstance(pickle.loads(small), MatchHandle)
        here.send(small)
        assert here.recv() == (5, 5, pages.tobytes())
    client.reserve(some_keys(256, seed=1), 65536).publish()
    here.send(small)
    assert here.recv() == (0, 0, b""), "the pages were evicted before the adoption"
    here.send(None)


def test_a_page_is_readable_when_all_its_parts_are_stored(daemon: RunningDaemon, client: Client) -> None:
    parts = [Part(index, 4) for index in range(4)]
    pipes = [elsewhere(write_part, daemon.socket, some_keys(3), PAGE, part) for part in parts]
    assert [pipe.recv() for pipe in pipes] == [3, 3, 3, 3]
    for pipe in pipes:
        assert len(client.match(some_keys(3))) == 0
        pipe.send(None)
        assert pipe.recv() == 3
    out = np.empty((3, 4, PAGE // 4), np.uint8)
    with client.match(some_keys(3)) as match:
        assert client.load(match, out.reshape(3, PAGE)) == 3
    assert (out == np.arange(4, dtype=np.uint8)[None, :, None]).all()


def test_threads_share_a_client(client: Client) -> None:
    wrong: list[str] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(60):
            which = int(rng.integers(0, 12))
            keys, pages = some_keys(6, seed=which), some_pages(6, which, 20_000)
            out = np.zeros_like(pages)
            with client.match(keys) as match:
                loaded = client.load(match, out) if len(match) else 0
                if not np.array_equal(out[:loaded], pages[:loaded]):
                    wrong.append(f"seed {seed}, prompt {which}")
            client.store(keys, pages)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_two_clients_of_one_process_do_not_share_pins(daemon: RunningDaemon, client: Client) -> None:
    keys, pages = some_keys(4), some_pages(4, 9)
    client.store(keys, pages)
    with daemon.client() as other, client.match(keys) as match:
        other.match(keys).release()
        other.reserve(some_keys(256, seed=1), 65536).publish()
        out = np.zeros_like(pages)
        assert client.load(match, out) == 4
        assert np.array_equal(out, pages)


def there(client: Client, keys: Keys) -> int:
    with client.match(keys) as match:
        return len(match)


def test_a_namespace_is_flushed_and_no_other(client: Client) -> None:
    ours, others = (namespace(salt=salt).keys(range(64)) for salt in ("ours", "others"))
    for keys in (ours, others):
        client.store(keys, [b"x"] * 4)
    assert client.flush(ours.namespace)
    assert (there(client, ours), there(client, others)) == (0, 4)
    assert client.flush(ours.namespace), "the namespace has no pages any more"
    assert client.store(ours, [b"x"] * 4).stored == 4


def test_a_first_flush_waits_for_the_attachment(daemon: RunningDaemon, client: Client) -> None:
    keys = some_keys(4)
    for _ in range(10):
        client.store(keys, some_pages(4, 1))
        with Client(daemon.socket) as fresh:
            assert fresh.flush(SPACE)
        assert there(client, keys) == 0


def test_a_flush_keeps_pages_in_use_and_reports_it(client: Client) -> None:
    keys = some_keys(4)
    client.store(keys, some_pages(4, 1))
    with client.match(keys[:1]):
        assert not client.flush(SPACE)
        assert there(client, keys) == 1
    assert client.flush(SPACE)
    assert there(client, keys) == 0


def test_a_flush_without_a_response_delays_no_other_call(daemon: RunningDaemon, client: Client) -> None:
    """A flush waits for the disk, so a late response does not count as a late daemon: stores are still requested."""
    keys = some_keys(4)
    daemon.signal(signal.SIGSTOP)
    assert not client.flush(SPACE, 0.05)
    assert not client.flush(SPACE, 0.0)
    daemon.signal(signal.SIGCONT)
    assert client.store(keys, some_pages(4, 1), timeout=20.0).stored == 4
    assert eventually(lambda: not client._attachment.requests._strays), "the background thread has read the responses"


def test_without_a_daemon_nothing_is_flushed() -> None:
    with Client("/nowhere/pagetier.sock") as client:
        assert not client.flush(SPACE)
