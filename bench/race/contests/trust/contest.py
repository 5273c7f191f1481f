"""Runs every failure with every system."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from race.contestants.lmcache_server import LmcacheServer
from race.contestants.registry import FILES, LMCACHE, MAKERS, NATIVE, PAGETIER, reason_absent
from race.contests.trust.failures import FAILURES
from race.contests.trust.observation import MakeCache, Observation, Scene, Timeouts
from race.results import Absent, Form, Line, Observed

TIMEOUTS = {Form.WHOLE: Timeouts(call=30.0, recovery=45.0), Form.QUICK: Timeouts(call=25.0, recovery=40.0)}
LMCACHE_REAP_S = 30
"""LMCache notices a dead engine after 120 s by default, and takes no setting below 30 s."""
LMCACHE_GRACE_S = 60
"""The same for an engine that has registered and sent no heartbeat yet; the default is 3,600 s."""
PARALLEL_TESTS = 6
_SLOWEST_FIRST = (LMCACHE, NATIVE, PAGETIER, FILES)


def measure(form: Form, folder: Path) -> Iterator[Line]:
    """Yields what was observed, several tests side by side."""
    folder.chmod(0o755)
    timeouts = TIMEOUTS[form]
    tests = []
    for name in _SLOWEST_FIRST:
        if reason := reason_absent(name):
            yield Absent("trust", name, reason)
        else:
            tests += [(name, failure) for failure in FAILURES]
    with ThreadPoolExecutor(PARALLEL_TESTS) as pool:
        waiting = [pool.submit(observe, *test, timeouts, folder) for test in tests]
        yield from (done.result() for done in as_completed(waiting))


def observe(name: str, failure: str, timeouts: Timeouts, folder: Path) -> Line:
    """Makes one failure happen to one system."""
    seen = Observation(failure, name, "")
    with tempfile.TemporaryDirectory(prefix="race-", dir=folder, ignore_cleanup_errors=True) as own:
        try:
            FAILURES[failure].happen(Scene(_maker(name), Path(own), timeouts), seen)
        except (Exception, SystemExit) as error:  # noqa: BLE001 -- whatever it is, the other tests run
            return Absent("trust", name, f"{failure}: the test failed: {type(error).__name__}: {str(error)[-600:]}")
    return Observed(seen)


def _maker(name: str) -> MakeCache:
    """Returns the maker; LMCache's time to notice a dead engine is shortened."""
    if name != LMCACHE:
        return MAKERS[name]
    reap = ("--worker-reap-timeout-seconds", str(LMCACHE_REAP_S))
    grace = ("--worker-registration-grace-seconds", str(LMCACHE_GRACE_S))
    return functools.partial(LmcacheServer, options=(*reap, *grace))
