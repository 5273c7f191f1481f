"""SGLang's scheduler reports its batches to the storage or the linker, with what they read of them.

The scheduler itself needs libraries for images that these tests do not install, so that it is read and not imported.
"""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path

_REPORTS = """
import sys
import sglang_imports
from types import ModuleType, SimpleNamespace

class Scheduler:
    def process_batch_result(self, batch, result):
        pass

module = sys.modules["sglang.srt.managers.scheduler"] = ModuleType("sglang.srt.managers.scheduler")
module.Scheduler = Scheduler
from pagetier.client.engines.sglang.engine.batch_hook import measure_batches
from pagetier.client.engines.sglang.linker.linker import PagetierLinker
from pagetier.client.engines.sglang.storage.backend import PagetierStorage

for _ in range(2):
    measure_batches()
storage, linker, seen = PagetierStorage(None), PagetierLinker.__new__(PagetierLinker), []
storage._pages = SimpleNamespace(batches=SimpleNamespace(ended=seen.append))
linker.transfers = SimpleNamespace(batch_ended=seen.append)
stores, links, other = Scheduler(), Scheduler(), Scheduler()
stores.tree_cache = SimpleNamespace(cache_controller=SimpleNamespace(storage_backend=storage), linker=None)
links.tree_cache = SimpleNamespace(linker=SimpleNamespace(cache_linker=linker))
other.tree_cache = object()
stores.process_batch_result("a batch", "its result")
links.process_batch_result("another one", "its result")
other.process_batch_result("of another cache", "its result")
assert seen == ["a batch", "another one"], seen
linker.transfers = None
links.process_batch_result("of an engine that is not supported", "its result")
"""


def _class(module: str, name: str) -> ast.ClassDef:
    spec = importlib.util.find_spec("sglang")
    assert spec is not None and spec.submodule_search_locations is not None
    source = Path(spec.submodule_search_locations[0], "srt", *module.split(".")).with_suffix(".py").read_text()
    return next(one for one in ast.parse(source).body if isinstance(one, ast.ClassDef) and one.name == name)


def test_the_scheduler_reports_each_batch_that_has_ended() -> None:
    subprocess.run([sys.executable, "-c", _REPORTS], check=True, cwd=Path(__file__).parent)


def test_sglang_keeps_what_is_read_of_a_batch_until_it_has_ended() -> None:
    batch, scheduler = _class("managers.schedule_batch", "ScheduleBatch"), _class("managers.scheduler", "Scheduler")
    mode = _class("model_executor.forward_batch_info", "ForwardMode")
    questions = {one.name for one in mode.body if isinstance(one, ast.FunctionDef)}
    assert {"is_extend_without_speculative", "is_split_prefill", "is_idle"} <= questions
    methods = {one.name: one for owner in (batch, scheduler) for one in owner.body if isinstance(one, ast.FunctionDef)}
    kept = {word.arg for call in ast.walk(methods["copy"]) if isinstance(call, ast.Call) for word in call.keywords}
    assert {"launch_ts", "prefix_lens", "extend_lens", "forward_mode"} <= kept
    assert "batch.launch_ts = time.monotonic()" in ast.unparse(methods["run_batch"])
    assert [one.arg for one in methods["process_batch_result"].args.args] == ["self", "batch", "result"]
