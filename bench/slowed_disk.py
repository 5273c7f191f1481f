"""Measures vLLM's time to the first token on the CPU with a disk that is slowed down, by the setting `load`.

    PYTHONPATH=tests/harness:tests/engines .engines/0.32/bin/python bench/slowed_disk.py --json

Three engines of a small Llama take turns with the same prompts, which are on disk only. They differ in the setting
`load`. The disk is slowed down to a multiple of break-even, at which loading takes as long as computing. What the
engine with `measured` decided is counted. It takes about ten minutes.

The engines take turns prompt set by prompt set: the worker of vLLM spins for a second after its last step. The
machine's speed changes by the minute, so that break-even is measured again for each disk.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from measure import Result, at_most, machine
from median_interval import median_interval
from one_host import Scene, forget, prompt, scene_of
from results_file import row_of, run_command
from vllm_engine import VllmEngine

RESULTS = Path(__file__).parent / "results" / "slowed-disk-vllm-0.32.json"
HARNESS = Path(__file__).parents[1] / "tests" / "harness"
MODES = ("always", "never", "measured")
MULTIPLES = (0.5, 1.0, 2.0, 4.0)
TOKENS, PAGE = 3000, 128
PROMPTS, ROUNDS = 12, 4
SPINS_S = 1.5  # vLLM's worker, after its last step
QUIET_THREADS = {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "0", "KMP_BLOCKTIME": "0"}
DECISIONS = {  # by the first counter of vLLM's metrics that has grown; none has if a prompt is computed to measure that
    "disk_tokens": "loaded from disk",
    "disk_slower_tokens": "computed",
    "memory_tokens": "found in memory after a probe",
    "": "tried",
}


class Contest:
    """The engines, and the prompts that are on disk."""

    def __init__(self, scene: Scene, stack: ExitStack, delay: Path) -> None:
        self._scene, self._delay = scene, delay
        self.decided: Counter[str] = Counter()
        self.engines = {mode: stack.enter_context(scene.engine(extra={"load": mode})) for mode in MODES}
        self._prompts = [prompt(1000 + number, TOKENS) for number in range(PROMPTS)]
        for engine in self.engines.values():
            self._first_token(engine, prompt(1, TOKENS))  # what an engine does once
        for one in self._prompts:
            self._first_token(self.engines["never"], one)
        scene.evict_to_disk()
        self._on_disk(self.engines["always"], self._prompts[0])

    def run(self, multiple: float) -> dict[str, list[float]]:
        """Returns the times of each engine with a disk that takes `multiple` times as long as computing."""
        self._delay.write_text("0")
        computing, loading = (statistics.median(self._turn(mode)) for mode in ("never", "always"))
        self._delay.write_text(str(max(0.0, multiple * computing - loading) / (TOKENS // PAGE)))
        self._turn("measured")  # it learns the disk
        self.decided.clear()
        times: dict[str, list[float]] = {mode: [] for mode in MODES}
        for number in range(ROUNDS):
            for mode in (*MODES[number % 3 :], *MODES[: number % 3]):
                times[mode] += self._turn(mode)
        return times

    def _turn(self, mode: str) -> list[float]:
        """Returns the time of each prompt in an engine, while the others are idle."""
        time.sleep(SPINS_S)
        return [self._decided(mode, one) for one in self._prompts]

    def _decided(self, mode: str, tokens: list[int]) -> float:
        """Returns the time of a prompt, and counts what the engine with `measured` decided."""
        before = self._counted(mode)
        seconds = self._on_disk(self.engines[mode], tokens)
        grown = (name for name, count in self._counted(mode).items() if count > before[name])
        self.decided[DECISIONS[next(grown, "")]] += mode == "measured"
        return seconds

    def _counted(self, mode: str) -> dict[str, int]:
        metrics = self.engines[mode].do("metrics")
        return {name: metrics.get(f"vllm:pagetier_{name}", 0) for name in filter(None, DECISIONS)}

    def _on_disk(self, engine: VllmEngine, tokens: list[int]) -> float:
        forget(engine)
        self._scene.daemon.pagetier("flush", "--all", "--tier", "memory", "--yes")
        return self._first_token(engine, tokens)

    def _first_token(self, engine: VllmEngine, tokens: list[int]) -> float:
        began = time.perf_counter()
        engine.do("generate", prompts=[tokens], tokens=1)
        return time.perf_counter() - began


def row(multiple: float, times: dict[str, list[float]], decided: Counter[str]) -> dict[str, Any]:
    """Returns the ratio of what was measured to the better of the two others, with its interval."""
    medians = {mode: statistics.median(some) for mode, some in times.items()}
    better = min(("always", "never"), key=medians.__getitem__)
    ratios = [one / other for one, other in zip(times["measured"], times[better], strict=True)]
    low, high = median_interval(ratios)
    against = "; ".join(f"{mode} {1e3 * median:.0f} ms" for mode, median in medians.items())
    against += "; " + ", ".join(f"{decided[one]} {one}" for one in DECISIONS.values() if decided[one])
    result = Result(f"loading_{multiple:g}_x", statistics.median(ratios), "x", against, at_most(1.10))
    return row_of(result) | {"low": low, "high": high, "load_average": os.getloadavg()[0]}


def rows() -> Iterator[dict[str, Any]]:
    """Yields the results."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        delay = Path(folder) / "seconds"
        delay.write_text("0")
        found = [str(HARNESS / "slowed_disk"), str(HARNESS), os.environ.get("PYTHONPATH", "")]
        os.environ.update({"PYTHONPATH": os.pathsep.join(found), "SLOWED_DISK": str(delay)} | QUIET_THREADS)
        contest = Contest(stack.enter_context(scene_of("llama")), stack, delay)
        for multiple in MULTIPLES:
            yield row(multiple, contest.run(multiple), contest.decided)


if __name__ == "__main__":
    run_command(__doc__, RESULTS, lambda: {"measured": True, "device": machine(), "results": [*rows()]})
