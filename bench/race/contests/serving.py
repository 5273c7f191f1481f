"""Real vLLM engines on the CPU: time to the first token from each tier, tokens with nothing cached, and convoys.

vLLM alone, with native offloading, with pagetier and with LMCache's own connector get the same prompts in turn. A
prompt ends inside a block, so each system has whole blocks of it: pagetier and native in blocks of 32 tokens, LMCache
in chunks of 256. In a convoy all requests begin with the same 4,096 tokens, which only the tiers below the engine have.
"""

from __future__ import annotations

import os
import random
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from race.contestants.cache import Sizes, drop_page_cache
from race.contestants.lmcache_server import LmcacheServer
from race.contestants.registry import LMCACHE, NATIVE, PAGETIER, reason_absent
from race.results import Absent, Figures, Form, Line
from serving import compare
from serving.compare import ALONE, Contest, contest
from serving.convoy import percentile
from serving.engine import BLOCK, ENVIRONMENT, Answer, Engine

VLLM = "vLLM"
NAMES = {ALONE: VLLM, compare.NATIVE: NATIVE, compare.OURS: PAGETIER, LMCACHE: LMCACHE}
CHUNK, CHUNK_BYTES = 256, 1 << 20
LENGTHS = {Form.QUICK: (260, 4100), Form.WHOLE: (260, 1030, 4100, 8190)}
ROUNDS = {Form.QUICK: 3, Form.WHOLE: 36}
REPEATS = 4
"""How often a round measures short loads from memory, and tokens with nothing cached: they vary much."""
SHORT = 1030
"""The longest prompt, in tokens, whose load from memory takes so little."""
CONVOYS = {Form.QUICK: (16,), Form.WHOLE: (16, 50)}
PREFIX, TAIL = 4096, 31
PREFIX_BYTES = PREFIX // BLOCK * compare.FRAME_BYTES
ANSWER = 30  # less than a block

Values = Iterator[tuple[str, str, str, float]]
"""The case, its unit, the engine, and the value."""


class Stage(msgspec.Struct):
    """The engines, the daemon of one of them, and LMCache's server if its engine runs, otherwise the reason."""

    engines: dict[str, Engine]
    contest: Contest
    order: random.Random
    server: LmcacheServer | None = None
    reason: str = reason_absent(LMCACHE)

    def in_turn(self, *left_out: str) -> list[tuple[str, Engine]]:
        """Returns the engines in a random order, without some."""
        engines = [(name, engine) for name, engine in self.engines.items() if name not in left_out]
        return self.order.sample(engines, len(engines))

    def forget(self) -> None:
        """Empties the engines' own caches, once everything is stored."""
        for engine in self.engines.values():
            engine.run([[7]])
            engine.forget()

    def only_on_disk(self) -> None:
        """Leaves the pages of pagetier and of LMCache on disk only."""
        self.contest.only_on_disk()
        if self.server:
            self.server.drop_memory()
            drop_page_cache(self.server.disk_files())


def measure(form: Form, folder: Path) -> Iterator[Line]:
    """Yields all figures; after each round those of the rounds so far, of which the last ones count."""
    if reason := reason_absent(NATIVE):
        yield Absent("serving", "all", reason)
        return
    set_environment()
    figures: dict[str, Figures] = {}
    yield Absent("serving", NATIVE, "from disk: the race gives it no file system tier in vLLM")
    yield Absent(
        "serving", "all but pagetier", "how often a convoy loads its prefix: nothing that the race can read counts it"
    )
    with ExitStack() as stack:
        stage = stack.enter_context(_stage(folder, stack))
        if stage.server is None:
            yield Absent("serving", LMCACHE, stage.reason)
        for number in range(ROUNDS[form] + 1):
            for (case, unit), values in _medians(_round(stage, form)).items():
                if number:
                    _add(figures.setdefault(case, Figures("serving", case, unit, _best(unit), {})), values)
            yield from figures.values()


def set_environment() -> None:
    """Sets the environment of the engines, which find the modules of the race and log errors only."""
    found = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])
    os.environ.update(ENVIRONMENT | {"PYTHONPATH": found, "VLLM_LOGGING_LEVEL": "ERROR"})


def _best(unit: str) -> str:
    return "high" if unit.endswith("a second") else "low"


@contextmanager
def _stage(folder: Path, stack: ExitStack) -> Iterator[Stage]:
    with contest(folder) as engines:
        stage = Stage(dict(engines.engines), engines, random.Random(3))
        if not stage.reason:
            try:
                _add_lmcache(stage, folder, stack)
            except (Exception, SystemExit) as error:  # noqa: BLE001 -- whatever it is, the others race
                stage.reason = f"its connector does not start with vLLM on a CPU: {str(error)[-500:]}"
        yield stage


def _add_lmcache(stage: Stage, folder: Path, stack: ExitStack) -> None:
    """Starts LMCache's server, and an engine with its connector."""
    sizes = Sizes(compare.HOST_BYTES, CHUNK_BYTES, CHUNK, disk=4 * compare.HOST_BYTES)
    server = stack.enter_context(LmcacheServer(sizes, folder))
    engine = Engine(LMCACHE, folder / "model", lmcache_transfer(server.port))
    stack.callback(engine.stop)
    engine.ready()
    stage.engines[LMCACHE], stage.server = engine, server


def lmcache_transfer(port: int) -> dict[str, Any]:
    """Returns the kv_transfer_config of LMCache with a server."""
    return {
        "kv_connector": "LMCacheMPConnector",
        "kv_connector_module_path": "race.contestants.lmcache_connector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"lmcache.mp.host": "tcp://127.0.0.1", "lmcache.mp.port": port},
    }


def _medians(values: Values) -> dict[tuple[str, str], dict[str, float]]:
    """Returns for each case and unit of a round the value of each system: the median of its repeats."""
    found: dict[tuple[str, str], dict[str, list[float]]] = {}
    for case, unit, name, value in values:
        found.setdefault((case, unit), {}).setdefault(NAMES[name], []).append(value)
    return {case: {name: statistics.median(some) for name, some in of.items()} for case, of in found.items()}


def _add(figures: Figures, values: Mapping[str, float]) -> None:
    """Adds a round, unless a system is missing that had values before: ratios are of the same rounds."""
    if values.keys() > figures.rounds.keys():
        figures.rounds.clear()
    if values.keys() >= figures.rounds.keys():
        for name, value in values.items():
            figures.rounds.setdefault(name, []).append(value)


def _round(stage: Stage, form: Form) -> Values:
    prompts = {tokens: stage.contest.prompt(tokens) for tokens in LENGTHS[form]}
    yield from _first_tokens(stage, "computed", prompts)
    stage.forget()
    yield from _first_tokens(stage, "from memory", prompts, ALONE)
    stage.forget()
    short = {tokens: prompt for tokens, prompt in prompts.items() if tokens <= SHORT}
    for _ in range(REPEATS - 1):
        yield from _first_tokens(stage, "from memory", short, ALONE)
        stage.forget()
    stage.only_on_disk()
    yield from _first_tokens(stage, "from disk", prompts, ALONE, compare.NATIVE)
    stage.forget()
    for _ in range(REPEATS):
        yield from _uncached(stage)
    prefix = stage.contest.prompt(PREFIX)
    for _, engine in stage.in_turn(ALONE):
        engine.run([prefix])
    for requests in CONVOYS[form]:
        stage.forget()
        yield from _convoy(stage, [stage.contest.prompt(PREFIX + TAIL, prefix) for _ in range(requests)])
    stage.forget()
    stage.contest.scene.wait_until_nothing_is_saved()


def _first_tokens(stage: Stage, source: str, prompts: dict[int, list[int]], *left_out: str) -> Values:
    for tokens, prompt in prompts.items():
        for name, engine in stage.in_turn(*left_out):
            answer = engine.run([prompt])
            engine.settle()
            if source == "computed" or _hit(answer, tokens):
                yield f"first token of {tokens} tokens, {source}", "ms", name, 1e3 * answer.seconds


def _hit(answer: Answer, tokens: int) -> bool:
    """Returns whether all whole chunks were cached. A round without them is left out."""
    return all(cached >= tokens // CHUNK * CHUNK for cached in answer.cached)


def _uncached(stage: Stage) -> Values:
    """Runs requests of one token, of which no page is ever complete.

    Tokens are counted and not steps, because an engine that polls its connector has steps that compute nothing.
    """
    prompts = [[9 + at] for at in range(8)]
    for name, engine in stage.in_turn():
        before = engine.processor_seconds()
        answer = engine.run(prompts, ANSWER)
        cpu = engine.processor_seconds() - before
        tokens = len(prompts) * ANSWER
        yield "nothing cached, tokens", "tokens a second", name, tokens / answer.seconds
        yield "nothing cached, CPU time of a token", "ms", name, 1e3 * cpu / tokens


def _convoy(stage: Stage, prompts: Sequence[list[int]]) -> Values:
    what, scene = f"convoy of {len(prompts)}", stage.contest.scene
    for name, engine in stage.in_turn():
        before = scene.loaded_bytes()
        answer = engine.run(prompts)
        engine.settle()
        if name != ALONE and not _hit(answer, PREFIX):
            continue
        yield f"{what}, requests", "requests a second", name, len(prompts) / answer.seconds
        if name == compare.OURS:
            yield f"{what}, loads of the prefix", "times", name, (scene.loaded_bytes() - before) / PREFIX_BYTES
        for percent in (50, 95):
            yield f"{what}, first token p{percent}", "ms", name, 1e3 * percentile(answer.first_tokens, percent)
