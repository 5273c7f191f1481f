"""SGLang's own fixtures and checks of its radix cache with a store, in SGLang's own configurations, over pagetier."""

from __future__ import annotations

import pytest

from disk_daemon import DiskDaemon
from sglang_engine import SglangEngine
from sglang_model import Spec

pytest_plugins = ("sglang_daemon",)


@pytest.mark.parametrize(
    ("case", "configurations"),
    [
        ("read_prompt", 17),
        ("read_after_a_miss", 17),
        ("attach_again", 13),
        ("read_into_a_tree_that_grows", 13),
        ("read_a_window", 8),
        ("read_the_rest_of_a_window", 2),
    ],
)
def test_sglangs_own_checks_pass_over_pagetier(daemon: DiskDaemon, case: str, configurations: int) -> None:
    with SglangEngine(Spec(layout="kit"), daemon.socket) as engine:
        (labels,) = engine.labels(case)
        assert len(labels) == configurations
        results = {label: engine.run(label, case)[0] for label in labels}
    assert set(results.values()) == {"passed"}, results
