"""Random deaths beside Dynamo's indexer: nothing is promised that is gone, no batch is missing, the replay is complete.

$TEST_MINUTES makes a soak of the test, and $TEST_SEED sets what happens. With -s there is a line for each event.
"""

from __future__ import annotations

import os
from collections import Counter
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np
import zmq

from dynamo_router import PROMPTS, Router, events_to, routed
from event_subscriber import EventSubscriber
from eventually import PATIENCE_S, Stopwatch, eventually
from indexer import note, require_indexer
from router import wait_until_heard
from seeded_random import chance

require_indexer()

LEAST_EVENTS = 20
MINUTES = float(os.environ.get("TEST_MINUTES", "0"))
_LEASE_S = 2.0
_PAGE = 128


def is_replayed(stream: EventSubscriber) -> bool:
    """Returns whether the engine replays all batches that were heard."""
    stream.hear()
    heard = list(stream.batches)
    return bool(heard) and stream.replayed(heard[0][0])[: len(heard)] == heard


class Deaths:
    """A host on which something happens, one after the other.

    Args:
        router: The host.
        stack: Ends streams, and the engines after the first one.
    """

    def __init__(self, router: Router, stack: ExitStack) -> None:
        self.router, self._stack = router, stack
        self._context: zmq.Context[zmq.Socket[bytes]] = stack.enter_context(zmq.Context())
        self.stream = self._subscribed()
        self._numbers: np.random.Generator = chance()
        self.counts = Counter[str]()
        self.batches = 0

    def run(self) -> None:
        """Lets one thing happen, and waits until the indexer believes what is true while the engine is idle."""
        happens = [self.serve, self.serve, self.flush, self.move, self.churn, self.forget]
        happens += [self.kill_daemon, self.stay_away, self.kill_disk_worker]
        what = happens[int(self._numbers.integers(len(happens)))]
        if self._numbers.integers(20) == 0:
            what = self.kill_engine
        watch = Stopwatch()
        what()
        happened = watch.seconds
        self.router.agree()
        self.stream.hear()
        self.counts[what.__name__] += 1
        note(f"{what.__name__}: {happened:.1f} s, believed {watch.seconds - happened:.2f} s later")

    def serve(self) -> None:
        first = int(self._numbers.integers(len(PROMPTS) - 20))
        self.router.serve(*PROMPTS[first : first + int(self._numbers.integers(1, 20))])

    def flush(self) -> None:
        tier = ("--tier", str(self._numbers.choice(["memory", "disk"]))) if self._numbers.integers(3) else ()
        assert self.router.scene.daemon.pagetier("flush", "--all", *tier, "--yes").exit_code == 0

    def move(self) -> None:
        assert self.router.scene.daemon.pagetier("flush", "--to-disk").exit_code == 0

    def churn(self) -> None:
        daemon = self.router.scene.daemon
        self.router.churn(daemon.header().evicted + int(self._numbers.integers(100, 2000)))

    def forget(self) -> None:
        self.router.forget()

    def kill_daemon(self) -> None:
        self.router.scene.daemon.kill()
        self._open_daemon()

    def stay_away(self) -> None:
        """Kills the daemon until the lease has ended."""
        self.router.scene.daemon.kill()
        beyond = lambda one: one["disk"] > one["gpu"]  # noqa: E731
        assert eventually(lambda: not any(map(beyond, self.router.indexer.reach(PROMPTS, "1"))))
        self._open_daemon()

    def kill_disk_worker(self) -> None:
        daemon = self.router.scene.daemon
        restarts = daemon.report().restarts
        daemon.kill_worker()
        daemon.wait_open(restarts + 1)

    def kill_engine(self) -> None:
        """Dynamo forgets the worker, and hears the next one, whose stream begins at 0."""
        assert is_replayed(self.stream)
        self.batches += len(self.stream.batches)
        self.router.engine.kill()
        endpoint, settings = events_to(self.router.folder, 1)
        self.router.indexer.replace("1", endpoint, f"{endpoint}-replay")
        again = self.router.scene.engine(engine=settings, extra={"events_lease": _LEASE_S})
        engine, self.stream = self._stack.enter_context(again), self._subscribed()
        wait_until_heard(self.router.indexer, engine, _PAGE)
        self.router = self.router._replace(engine=engine)
        self.learn()

    def learn(self) -> None:
        """Lets the engine ask for all prompts: it announces only pages that its own requests have asked for."""
        self.router.serve(*PROMPTS)
        self.router.scene.settle()

    def _subscribed(self) -> EventSubscriber:
        endpoint, _ = events_to(self.router.folder, 1)
        return self._stack.enter_context(closing(EventSubscriber(endpoint, f"{endpoint}-replay", self._context)))

    def _open_daemon(self) -> None:
        self.router.scene.daemon.open()
        assert self.router.client.wait_attached(PATIENCE_S)
        assert eventually(lambda: self.router.engine.attached)


def test_random_deaths_leave_no_false_promise(tmp_path: Path) -> None:
    with routed(tmp_path, events_lease=_LEASE_S) as router, ExitStack() as stack:
        deaths = Deaths(router, stack)
        deaths.learn()
        router.agree()
        watch = Stopwatch()
        while deaths.counts.total() < LEAST_EVENTS or watch.seconds < 60 * MINUTES:
            deaths.run()
        assert is_replayed(deaths.stream)
        deaths.batches += len(deaths.stream.batches)
        note(f"{watch.seconds:.0f} s, {deaths.batches} batches without a gap, events: {dict(deaths.counts)}")
