"""Loads change the rows of their pages, and nothing else: one that writes a row more is noticed in every pool."""

from __future__ import annotations

import pytest

from disk_daemon import DiskDaemon
from sglang_engine import SglangEngine
from sglang_model import Spec

pytest_plugins = ("sglang_daemon",)
PAGES = 8
POOLS = {"mha": ["kv"], "mla": ["kv"], "swa": ["kv", "swa"], "mamba": ["kv", "mamba"]}
FURTHER = {"dsa": ["kv"], "qsa": ["mamba"], "mamba-swa": ["swa", "mamba"]}
SPECS = [
    (Spec(kind, 16, layout=layout), pool) for layout in ("", "page_first") for kind in POOLS for pool in POOLS[kind]
]
SPECS += [(Spec("mha", 16, layout=layout), "kv") for layout in ("layer_first", "page_first_direct", "page_head")]
SPECS += [(Spec(kind, 64 if kind == "dsa" else 16), pool) for kind in FURTHER for pool in FURTHER[kind]]


@pytest.mark.parametrize(("spec", "pool"), SPECS, ids=lambda one: one if isinstance(one, str) else one.name)
def test_a_row_too_many_is_noticed(daemon: DiskDaemon, spec: Spec, pool: str) -> None:
    with SglangEngine(spec, daemon.socket, one_more=pool) as engine:
        engine.insert(1, PAGES)
        engine.reset()
        (result,) = engine.restore(1, PAGES)
        assert result.loaded == PAGES * spec.page and not result.equal
