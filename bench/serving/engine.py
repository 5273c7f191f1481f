"""A vLLM in processes of its own that computes on request and reports how long it took."""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec

from serving.connector_clock import ConnectorClock, ProcessorTime

BLOCK = 32
LENGTH = 8192
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    # What a step frees stays in the process. Otherwise each step of a long prompt faults 9,000 to 77,000 pages in,
    # 1 to 5 % of its time, by chance more in one engine than in the other.
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TOP_PAD_": str(64 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(8 << 30),
    "OMP_NUM_THREADS": "1",  # vLLM leaves a core to everything that does not compute, too
    "PYTHONHASHSEED": "0",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    # With processes of its own, an engine that has answered occupies a core for another second: its worker spins.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
}
SPAWN = get_context("spawn")
_START_S = 600.0
_NONE: Mapping[str, Any] = {}
_ANSWER_S = 300.0
_SETTLING_S = 0.03  # the longest copy of the race, 32 MiB, takes half of it
_CPU_CLOCK = 2  # with a process ID it makes the number of a clock, as clock_getcpuclockid() does

Prompts = Sequence[Sequence[int]]


class Answer(msgspec.Struct, frozen=True):
    """The times of one run, and of each prompt the cached tokens and the answer.

    Attributes:
        seconds: Seconds until the last token of the last prompt.
        cached: The cached tokens of each prompt.
        tokens: The tokens of each answer.
        first_tokens: Seconds until the first token of each answer.
        steps: The engine's steps.
    """

    seconds: float
    cached: tuple[int, ...]
    tokens: tuple[tuple[int, ...], ...]
    first_tokens: tuple[float, ...]
    steps: int


class Engine:
    """One of several engines that take turns.

    Args:
        name: Its name.
        model: The folder of the model.
        transfer: The kv_transfer_config; None for vLLM alone.
        options: Further arguments of vLLM's LLM.
    """

    def __init__(
        self,
        name: str,
        model: Path,
        transfer: Mapping[str, Any] | None,
        options: Mapping[str, Any] = _NONE,
    ) -> None:
        self.name, self._log = name, model.parent / f"{name}.log"
        self._pipe, theirs = SPAWN.Pipe()
        settings = (str(model), dict(transfer) if transfer else None, str(self._log), dict(options))
        self._process = SPAWN.Process(target=_live, args=(settings, theirs))
        self._process.start()
        theirs.close()

    def ready(self) -> None:
        """Waits until the engine accepts requests."""
        self._answer(_START_S)

    def run(self, prompts: Prompts, tokens: int = 1) -> Answer:
        """Runs all prompts at once, with `tokens` new tokens each."""
        self._pipe.send(("run", (prompts, tokens)))
        return Answer(*self._answer(_ANSWER_S))

    def settle(self) -> None:
        """Lets the connector end what it does after an answer, so that it takes no time from the next engine."""
        self._pipe.send(("settle", ()))
        self._answer(_ANSWER_S)

    def forget(self) -> None:
        """Empties the engine's own prefix cache; a connector's cache stays."""
        self._pipe.send(("forget", ()))
        self._answer(_ANSWER_S)

    def processor_time(self) -> ProcessorTime:
        """Returns its CPU time since its start."""
        self._pipe.send(("processor_time", ()))
        taken: ProcessorTime = self._answer(_ANSWER_S)
        return taken

    def processor_seconds(self) -> float:
        """Returns the CPU time of all of its processes."""
        return sum(_seconds_of(pid) for pid in _session(self._process.pid or 0))

    def stop(self) -> None:
        """Stops all of its processes."""
        self._pipe.close()
        self._process.join(30)
        for pid in _session(self._process.pid or 0):
            os.kill(pid, signal.SIGKILL)

    def _answer(self, seconds: float) -> Any:
        try:
            if self._pipe.poll(seconds):
                return self._pipe.recv()
        except EOFError:
            pass
        raise SystemExit(f"{self.name} does not answer: {self._log.read_text(errors='replace')[-6000:]}")


def _live(settings: tuple[str, dict[str, Any] | None, str, dict[str, Any]], pipe: Connection) -> None:
    """Runs the engine's process until the other end of the pipe is closed."""
    model, transfer, log, options = settings
    os.setsid()
    with Path(log).open("wb") as written:
        os.dup2(written.fileno(), 1)
        os.dup2(written.fileno(), 2)
    folder = {"VLLM_RPC_BASE_PATH": str(Path(model).parent)}  # vLLM leaves its sockets there
    os.environ.update(ENVIRONMENT | folder)
    vllm = _Vllm(model, transfer, options)
    pipe.send(None)
    try:
        while True:
            what, arguments = pipe.recv()
            pipe.send(getattr(vllm, what)(*arguments))
    except EOFError:
        vllm.end()
        sys.stdout.flush()


class _Vllm:
    def __init__(self, model: str, transfer: dict[str, Any] | None, options: Mapping[str, Any]) -> None:
        from vllm import LLM, SamplingParams

        self._sampling, self._steps = SamplingParams, 0
        self._clock = ConnectorClock(_connector_of(transfer))
        settings = {
            "skip_tokenizer_init": True,
            "enforce_eager": True,
            "dtype": "bfloat16",
            "block_size": BLOCK,
            "max_model_len": _length_of(model),
            "max_num_batched_tokens": LENGTH,
            "enable_prefix_caching": True,
            "kv_transfer_config": transfer,
        }
        self._llm = LLM(model=model, **settings | dict(options))

    def run(self, prompts: Prompts, tokens: int) -> tuple[Any, ...]:
        """Returns the fields of an Answer. All prompts are submitted before the first step."""
        greedy = self._sampling(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)
        engine, outputs = self._llm.llm_engine, {}
        first: dict[str, float] = {}
        began, before = time.perf_counter(), self._steps
        for at, prompt in enumerate(prompts):
            engine.add_request(str(at), {"prompt_token_ids": list(prompt)}, greedy)
        while engine.has_unfinished_requests():
            self._steps += 1
            for output in engine.step():
                outputs[output.request_id] = output
                first.setdefault(output.request_id, time.perf_counter() - began)
        seconds, names = time.perf_counter() - began, [str(at) for at in range(len(prompts))]
        cached = tuple(outputs[name].num_cached_tokens or 0 for name in names)
        answers = tuple(tuple(outputs[name].outputs[0].token_ids) for name in names)
        return seconds, cached, answers, tuple(first[name] for name in names), self._steps - before

    def settle(self) -> None:
        self._llm.llm_engine.step()  # some connectors store in the step after the answer
        time.sleep(_SETTLING_S)

    def forget(self) -> None:
        """Empties the prefix cache.

        Blocks are in use until they are stored, and the engine advances only with requests.

        Raises:
            RuntimeError: Blocks were still in use after 200 requests.
        """
        for _ in range(200):
            self._llm.llm_engine.step()  # some connectors release the blocks of the last request one step later
            if self._llm.reset_prefix_cache():
                return
            self.run([[7]], 1)
        raise RuntimeError("cannot empty the prefix cache")

    def processor_time(self) -> ProcessorTime:
        return self._clock.read(self._steps)

    def end(self) -> None:
        self._llm.llm_engine.engine_core.shutdown()


def _connector_of(transfer: dict[str, Any] | None) -> type:
    """Returns the class of the connector; without one, a class that has no methods."""
    if transfer is None:
        return object
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    if module := transfer.get("kv_connector_module_path"):
        found: type = getattr(importlib.import_module(module), transfer["kv_connector"])
    else:
        found = KVConnectorFactory.get_connector_class_by_name(transfer["kv_connector"])
    return found


def _length_of(model: str) -> int:
    """Returns the longest context of a model."""
    return min(LENGTH, int(json.loads((Path(model) / "config.json").read_text())["max_position_embeddings"]))


def _session(leader: int) -> list[int]:
    """Returns the living processes of a session."""
    pids = (int(folder.name) for folder in Path("/proc").iterdir() if folder.name.isdigit())
    return [pid for pid in pids if (fields := _stat(pid)) and int(fields[3]) == leader and fields[0] != "Z"]


def _seconds_of(pid: int) -> float:
    try:
        return time.clock_gettime(~pid << 3 | _CPU_CLOCK)
    except OSError:
        return 0.0


def _stat(pid: int) -> list[str]:
    """Returns the fields of /proc/PID/stat from the state on."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
