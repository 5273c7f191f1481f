"""Several clients against a dictionary of pages, step by step, while daemons stop, die and sleep, and with a disk.

tests/shm/test_index_model.py covers the index in these cases; this module covers what callers get.
"""

from __future__ import annotations

import pickle
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from client_world import PAGES, PROMPTS, ClientWorld, Held, Room, keys_of
from eventually import PATIENCE_S, eventually
from keyed_pages import PAGE, assert_exact, page_of, store
from pagetier.client import Keys, Outcome
from pagetier.client.adapters import adopt

who = st.integers(0, 2)
chains = st.builds(keys_of, st.integers(0, PROMPTS - 1), st.integers(1, PAGES))
picks = st.integers(0, 1 << 16)
SHORT_S = 0.25


class ClientMachine(RuleBasedStateMachine):
    world: ClassVar[ClientWorld]

    @initialize()
    def begin(self) -> None:
        self.world.begin()

    def teardown(self) -> None:
        self.world.close()

    # ---- storing

    @rule(who=who, keys=chains)
    def store(self, who: int, keys: Keys) -> None:
        w = self.world
        expected = w.expected(keys)
        assert store(w.clients[who], keys, timeout=PATIENCE_S).outcomes == expected
        w.memory |= {key for key, outcome in zip(keys, expected, strict=True) if outcome is Outcome.STORED}

    @precondition(lambda self: len(self.world.rooms) < 3)
    @rule(who=who, keys=chains)
    def reserve(self, who: int, keys: Keys) -> None:
        w = self.world
        free = [at for at, outcome in enumerate(w.expected(keys)) if outcome is Outcome.STORED]
        reservation = w.clients[who].reserve(keys, PAGE, timeout=PATIENCE_S)
        assert reservation.granted.tolist() == free
        if free:
            w.rooms.append(Room(w.clients[who], reservation, keys, free))

    @precondition(lambda self: self.world.rooms)
    @rule(pick=picks)
    def publish(self, pick: int) -> None:
        w = self.world
        room = w.rooms.pop(pick % len(w.rooms))
        for page in room.granted:
            room.reservation.write(page, page_of(room.keys[page]))
        assert room.reservation.publish().stored == len(room.granted)
        w.memory |= {room.keys[page] for page in room.granted}

    @precondition(lambda self: self.world.rooms)
    @rule(pick=picks)
    def abandon(self, pick: int) -> None:
        """Abandons a reservation, also one that is written in part."""
        w = self.world
        room = w.rooms.pop(pick % len(w.rooms))
        room.reservation.write(room.granted[0], page_of(room.keys[room.granted[0]])[: PAGE // 2])
        room.reservation.abandon()

    # ---- finding

    @rule(who=who, keys=chains)
    def load(self, who: int, keys: Keys) -> None:
        w = self.world
        out = np.zeros((len(keys), PAGE), np.uint8)
        reach, hurry = w.pages_anywhere(keys), bool(w.pending & set(keys))
        with w.clients[who].match(keys) as match:
            assert (len(match), match.available_pages) == (w.pages_in_memory(keys), self.matched_pages(keys))
            loaded = w.clients[who].load(match, out, timeout=0 if hurry else PATIENCE_S)
        assert_exact(keys, out[:loaded])
        assert loaded == reach or (hurry and w.pages_in_memory(keys) <= loaded <= reach)
        self.wait_in_memory(keys, hurry=hurry)

    @rule(who=who, keys=chains)
    def prefetch(self, who: int, keys: Keys) -> None:
        w = self.world
        if not w.pending & set(keys):
            assert w.clients[who].prefetch(keys, PATIENCE_S).wait(PATIENCE_S) == w.pages_anywhere(keys)
            self.wait_in_memory(keys, hurry=False)

    def matched_pages(self, keys: Keys) -> int:
        """Returns how many pages a match covers: pages in memory, then pages on disk from the first page on disk on."""
        w = self.world
        first = w.pages_in_memory(keys)
        return w.pages_anywhere(keys) if first < len(keys) and keys[first] in w.disk else first

    def wait_in_memory(self, keys: Keys, *, hurry: bool) -> None:
        """Waits until pages from disk are in memory, after a load that did not wait for them."""
        w = self.world
        asked = keys[: w.pages_anywhere(keys)]
        if hurry and not set(asked) <= w.memory:
            ours = [key for key in asked if key not in w.pending]
            assert eventually(lambda: w.daemon.header().open_entries == len(w.pending))
            w.memory |= {key for key in ours if self.is_in_memory(key, keys)}
        elif not hurry:
            w.memory |= set(asked)

    def is_in_memory(self, key: bytes, keys: Keys) -> bool:
        at = list(keys).index(key)
        with self.world.clients[0].match(keys[at : at + 1]) as match:
            return len(match) == 1

    @precondition(lambda self: len(self.world.held) < 4)
    @rule(who=who, keys=chains)
    def pin(self, who: int, keys: Keys) -> None:
        w = self.world
        match = w.clients[who].match(keys)
        assert len(match) == w.pages_in_memory(keys)
        if len(match):
            w.held.append(Held(w.clients[who], match, keys[: len(match)]))

    @precondition(lambda self: self.world.held)
    @rule(pick=picks, who=who)
    def to_handle(self, pick: int, who: int) -> None:
        w = self.world
        held = w.held[pick % len(w.held)]
        adopted = adopt(w.clients[who].session, pickle.loads(pickle.dumps(held.match)))
        assert len(adopted) == len(held.keys)
        w.held.append(Held(w.clients[who], adopted, held.keys))

    @precondition(lambda self: self.world.held)
    @rule(pick=picks)
    def release(self, pick: int) -> None:
        """Pages of a match stay available until it is released."""
        w = self.world
        held = w.held.pop(pick % len(w.held))
        out = np.zeros((len(held.keys), PAGE), np.uint8)
        assert held.client.load(held.match, out) == len(held.keys)
        assert_exact(held.keys, out)
        held.match.release()

    # ---- clients

    @rule(who=who)
    def leave(self, who: int) -> None:
        """Closes a client with all that it has pinned or reserved, and starts another one."""
        w = self.world
        w.clients[who].close()
        w.held = [held for held in w.held if held.client is not w.clients[who]]
        w.rooms = [room for room in w.rooms if room.client is not w.clients[who]]
        assert eventually(lambda: len(w.daemon.slots()) == len(w.clients))
        w.clients[who] = w.daemon.client()

    @rule()
    def flush_memory(self) -> None:
        w = self.world
        w.write_all()
        if not w.rooms:
            answer = w.daemon.flush("memory")
            assert (answer.dropped, answer.kept) == (len(w.memory - w.pinned), len(w.pinned))
            w.memory &= w.pinned

    @precondition(lambda self: not self.world.rooms and not self.world.held)
    @rule()
    def flush_all(self) -> None:
        w = self.world
        w.write_all()
        w.daemon.flush()
        w.memory, w.disk = set(), set()

    # ---- daemons

    @precondition(lambda self: self.world.memory)
    @rule(who=who, keys=chains)
    def kill_the_daemon(self, who: int, keys: Keys) -> None:
        """Kills the daemon: only stores are rejected, and only until the next daemon runs."""
        w = self.world
        w.daemon.kill()
        with w.clients[who].match(keys) as match:
            assert len(match) == w.pages_in_memory(keys)
        assert store(w.clients[who], keys, timeout=SHORT_S).refused == len(keys)
        w.daemon.start()
        w.wait_ready()

    @precondition(lambda self: self.world.memory)
    @rule()
    def stop_the_daemon(self) -> None:
        """Stops the daemon, which writes unwritten pages to disk and empties the memory."""
        w = self.world
        w.let_go_of_all()
        w.daemon.stop()
        w.daemon.start()
        w.wait_ready()
        w.disk |= w.memory
        w.memory = set()
        assert eventually(lambda: all(not len(client.match(keys_of(0, 1))) for client in w.clients))

    @rule(who=who, keys=chains)
    def let_the_daemon_sleep(self, who: int, keys: Keys) -> None:
        """Stops the daemon's process: calls time out once, and pages that are granted too late are released."""
        w = self.world
        w.daemon.signal(signal.SIGSTOP)
        try:
            result = store(w.clients[who], keys, timeout=SHORT_S)
            assert (result.refused, result.reason) == (len(keys), "the daemon did not answer in time")
            with w.clients[who].match(keys) as match:
                assert len(match) == w.pages_in_memory(keys)
        finally:
            w.daemon.signal(signal.SIGCONT)
        w.wait_ready()
        assert eventually(lambda: w.daemon.header().open_entries == len(w.pending))
        late = w.clients[who]._attachment.requests
        assert eventually(lambda: not late._overdue), "no requests are sent to a daemon that is late"


@pytest.fixture(scope="module")
def world() -> Iterator[ClientWorld]:
    with tempfile.TemporaryDirectory(prefix="pagetier-test-") as folder:
        world = ClientWorld(Path(folder))
        yield world
        world.end()


def test_clients_get_true_results(world: ClientWorld) -> None:
    ClientMachine.world = world
    run_state_machine_as_test(
        ClientMachine,
        settings=settings(
            max_examples=6,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )
