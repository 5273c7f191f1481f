"""vLLM's scheduler computes pages that are in memory where copying them is slower, in virtual time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fake_vllm_client import PAGE, FakeClient, request
from pagetier.client.engines.vllm.paged_group import PagedGroup
from pagetier.client.engines.vllm.scheduler import SchedulerHalf
from pagetier.client.engines.vllm.tier_reads import ReadLimits
from pagetier.client.groups import FullAttention
from pagetier.client.load_or_compute import load_modes
from running_daemon import namespace
from virtual_clock import VirtualClock

PREFIX = 24
COMPUTE_S = 0.6  # the prefix


class Scene:
    """A scheduler's half whose engine has measured how long computing takes, and memory that has a prefix."""

    def __init__(self, load: str = "measured") -> None:
        self.fake = FakeClient(PREFIX, PREFIX)
        there: Any = self.fake
        group = PagedGroup(FullAttention(PAGE), namespace(PAGE), 1, True)
        self.half = SchedulerHalf(there, [group], ReadLimits(2.0, load=load_modes(load)))
        for tokens in (PREFIX // 4, PREFIX // 2, PREFIX, 2 * PREFIX):
            self.half.reads.rule.computed(tokens, 0.0, COMPUTE_S * tokens / PREFIX)

    def load(self, name: str, *ranks_s: float, fails: bool = False) -> int:
        """Matches and allocates like vLLM. What is loaded ends after the ranks have reported how long they copied."""
        one = request(name=name)
        offered = self.half.matched(one, 0)
        assert offered is not None and self.half.matched(one, 0) == offered, "it changed its mind"
        self.half.allocated(one, _blocks(), offered)
        if offered:
            for seconds in ranks_s:
                self.half.reads.report({name: seconds})
            if fails:
                self.half.failed([name], frozenset())
            self.half.loaded([name])
            self.half.allocated(one, _blocks(), 0)
        self.half.finished(one, [[]])
        return offered


def _blocks() -> list[list[Any]]:
    return [[SimpleNamespace(block_id=at, is_null=False, block_hash=None) for at in range(1, 12)]]


def test_pages_that_are_computed_faster_than_copied_are_computed_and_counted(standing_clock: VirtualClock) -> None:
    scene = Scene()
    assert scene.load("first", 0.1, 2 * COMPUTE_S) == PREFIX, "nothing was known of copies"
    assert scene.half.counters.taken() == {"memory_tokens": PREFIX}
    assert scene.load("second") == 0, "the slowest rank counts"
    assert scene.half.counters.taken() == {"memory_slower_tokens": PREFIX}
    assert [one.memory_slower_tokens for one in scene.fake.counted] == [0, PREFIX]
    assert scene.fake.pinned == 0


def test_pages_are_loaded_again_when_copies_are_fast_again(standing_clock: VirtualClock) -> None:
    scene, loads = Scene(), 0
    scene.load("first", 1.5 * COMPUTE_S)
    for number in range(100):
        loads += bool(scene.load(f"{number}", COMPUTE_S / 10))
    assert loads > 70


@pytest.mark.parametrize("load", ["measured", "always", "never", "memory=always", "memory=never"])
def test_a_setting_decides(standing_clock: VirtualClock, load: str) -> None:
    scene = Scene(load)
    first = scene.load("first", 2 * COMPUTE_S)
    assert (first, scene.load("second")) == {
        "measured": (PREFIX, 0),
        "always": (PREFIX, PREFIX),
        "never": (PREFIX, 0),
        "memory=always": (PREFIX, PREFIX),
        "memory=never": (0, 0),
    }[load]


def test_a_load_that_has_failed_measures_nothing(standing_clock: VirtualClock) -> None:
    scene = Scene()
    assert scene.load("first", 9.0, fails=True) == scene.load("second", 0.1) == scene.load("third") == PREFIX


def test_what_was_computed_is_not_stored_again(standing_clock: VirtualClock) -> None:
    scene, one = Scene(), request(name="second")
    scene.load("first", 2 * COMPUTE_S)
    assert scene.half.matched(one, 0) == 0
    scene.half.allocated(one, _blocks(), 0)
    assert scene.half._tracked["second"].stored == [PREFIX // PAGE]
