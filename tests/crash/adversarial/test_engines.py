"""Tests adversarial engines: limits hold, and an engine beside them is served or rejected with a reason."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from adversarial.control_client import Honest
from adversarial.processes import harm
from eventually import eventually
from host_events.engine import Served
from running_daemon import RunningDaemon, namespace

FRAME, FRAMES = 64 << 10, 1024
ROUNDS, SHARE = 30, 0.9
PINNED, MORE = 900, 200  # pages: together they are too many


@pytest.fixture
def daemon(request: pytest.FixtureRequest) -> Iterator[RunningDaemon]:
    """Yields a daemon with a policy: with `lru`, the default here, it leaves out no page, and each is found."""
    policy = getattr(request, "param", "lru")
    with RunningDaemon(
        str(FRAMES * FRAME), str(FRAME), "--constant", "store.quarantine=0.05", "--set", f"evict.policy={policy}"
    ) as daemon:
        yield daemon


ACTS = pytest.mark.parametrize("act", ["reserves", "pins", "gives_up"])


@ACTS
def test_an_engine_that_uses_only_the_api_gets_its_share_at_most(daemon: RunningDaemon, act: str) -> None:
    served, again = served_beside(act, daemon)
    assert served.loaded == served.rounds * 4, served
    assert again <= served.rounds / 3, "others rarely displace pages between a store and a load"
    assert eventually(lambda: len(daemon.slots()) == 0)
    if act == "pins":
        assert daemon.log.read_text().count("event=pins_bounded") == 1


@ACTS
@pytest.mark.parametrize("daemon", ["cadence"], indirect=True)
def test_limits_hold_also_with_the_policy_that_leaves_pages_out(daemon: RunningDaemon, act: str) -> None:
    served, _ = served_beside(act, daemon)
    assert served.loaded, served


def served_beside(act: str, daemon: RunningDaemon) -> tuple[Served, int]:
    """Returns what an honest engine got beside an adversarial one, and how often it stored a prompt again."""
    with Honest(daemon.socket) as honest, harm("hostile_engines", act, daemon.socket):
        assert honest.wait_for(ROUNDS), honest.served
        (hostile,) = (slot for slot in daemon.slots() if slot.name == "hostile")
        assert hostile.pinned_bytes <= SHARE * FRAMES * FRAME
        assert daemon.header().used_frames <= FRAMES
        assert daemon.findings() == []
    assert (honest.served.wrong, honest.served.refused) == (0, 0), honest.served
    return honest.served, honest.engine.again


def test_an_engine_that_pins_every_page_is_named_in_the_log(daemon: RunningDaemon) -> None:
    """An engine's stores are rejected with the reason while its loads work. The attacker's death releases all pages."""
    keys = namespace(salt="full").keys(range(16 * PINNED))
    with daemon.client() as client:
        assert client.store(keys, [bytes(FRAME)] * PINNED).stored == PINNED
        with harm("hostile_engines", "pin_all", daemon.socket):
            result = client.store(namespace(salt="late").keys(range(16 * MORE)), [bytes(FRAME)] * MORE)
            assert result.refused and "pinned" in result.reason, result
            with client.match(keys) as match:
                assert len(match) == len(keys), "pages stored before the attack are found"
            assert eventually(lambda: "(scribbler)" in daemon.log.read_text())
            assert daemon.log.read_text().count("event=arena_pinned") == 1
        assert eventually(lambda: len(daemon.slots()) == 1)
        assert client.store(namespace(salt="again").keys(range(16 * MORE)), [bytes(FRAME)] * MORE).stored == MORE


@pytest.mark.parametrize("daemon", ["lru", "cadence"], indirect=True)
def test_an_engine_that_scribbles_on_lock_words_costs_only_pages(daemon: RunningDaemon) -> None:
    """The daemon survives; pins in the names of other slots end with the attacker; the next daemon is sound.

    A page may be lost, or be found before it is complete: this test does not check that.
    """
    with Honest(daemon.socket) as honest:
        with harm("hostile_engines", "scribbles", daemon.socket):
            assert honest.wait_for(ROUNDS), honest.served
        assert eventually(lambda: len(daemon.slots()) == 1)
        assert honest.wait_for(3)
        assert not [finding for finding in daemon.findings() if "slots that are not taken" in finding]
    daemon.kill()
    daemon.start()
