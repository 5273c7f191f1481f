"""Requests with other salts, extra keys or LoRA adapters share no pages, through both doors into SGLang."""

from __future__ import annotations

from typing import Final

import pytest

from disk_daemon import DiskDaemon
from sglang_engine import SglangEngine
from sglang_model import Salted, Spec, computed, whole

pytest_plugins = ("sglang_daemon",)
PAGES: Final = 4
STORED: Final = (
    Salted(1),
    Salted(1, extra_key="a"),
    Salted(1, cache_salt="a"),
    Salted(1, extra_key="a", cache_salt="a"),
    Salted(1, extra_key="aa"),
)
NOT_STORED: Final = (Salted(1, extra_key=""), Salted(1, cache_salt="aa"), Salted(1, extra_key="a", cache_salt="b"))


def insert_all(engine: SglangEngine) -> None:
    """Stores the same tokens with each salt."""
    for one in STORED:
        assert min(engine.insert(one, PAGES)) >= 1, one


def assert_each_has_its_own(engine: SglangEngine) -> None:
    """Asserts that each salt has its own state, and that other salts have none."""
    for one in STORED:
        assert engine.restore(one, PAGES) == whole(engine.spec, PAGES), one
    for one in NOT_STORED:
        assert engine.restore(one, PAGES) == computed(engine.spec), one


@pytest.mark.parametrize(("kind", "layout"), [("mha", ""), ("mha", "page_first"), ("swa", ""), ("mamba", "page_first")])
def test_the_same_tokens_with_other_salts_are_other_pages(daemon: DiskDaemon, kind: str, layout: str) -> None:
    spec = Spec(kind, 16, layout=layout)
    with SglangEngine(spec, daemon.socket) as engine:
        insert_all(engine)
        engine.reset()
        assert_each_has_its_own(engine)
    other_door = Spec(kind, 16, layout="" if layout else "page_first")
    with SglangEngine(other_door, daemon.socket) as other:
        assert_each_has_its_own(other)


@pytest.mark.parametrize("layout", ["", "page_first"])
def test_a_salt_finds_only_its_own_half_of_a_prompt(daemon: DiskDaemon, layout: str) -> None:
    spec, long, short = Spec("mha", 16, layout=layout), Salted(1, cache_salt="long"), Salted(1, cache_salt="short")
    with SglangEngine(spec, daemon.socket) as engine:
        engine.insert(long, 2 * PAGES)
        engine.insert(short, PAGES)
        engine.reset()
        assert engine.restore(short, 2 * PAGES) == whole(spec, PAGES)
        assert engine.restore(long, 2 * PAGES) == whole(spec, 2 * PAGES)


def test_each_adapter_finds_its_own_pages(daemon: DiskDaemon) -> None:
    spec, adapters = Spec("mha", 16, ranks=2), [Salted(1, extra_key=name) for name in ("one", "two")]
    with SglangEngine(spec, daemon.socket, lora=True) as engine:
        for one in (Salted(1), *adapters):
            assert engine.insert(one, PAGES) == [1, 1]
        assert engine.evict(1024) == [0, 0]
        for one in (Salted(1), *adapters):
            assert engine.restore(one, PAGES) == whole(spec, PAGES), one
        assert engine.restore(Salted(1, extra_key="three"), PAGES) == computed(spec)
