"""The work of `pagetier-bench serve`: starts the systems in turns, sends the prompts and prints the report."""

from __future__ import annotations

import shutil
import signal
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from enum import Enum
from pathlib import Path
from typing import Final

import click
import msgspec

from pagetier.client.cli.bench.daemon import BenchDaemon, own_environment, running_daemon
from pagetier.client.cli.bench.programs import BenchmarkError, program_path
from pagetier.client.cli.bench.report import BenchReport, Run, report_of, text_of
from pagetier.client.cli.bench.resident import available_bytes
from pagetier.client.cli.bench.server import VllmServer, check_arguments, serving, vllm_program
from pagetier.client.cli.bench.workload import BenchPrompt, Chats, chats_needed, prompts_of_trace, warm_up_prompt
from pagetier.client.cli.replay.trace import Trace, TraceError, read_trace
from pagetier.client.cli.termination import exiting_on_sigterm
from pagetier.shm import clock
from pagetier.shm.exit_codes import Exit
from pagetier.shm.units import counted, format_size

_GIB: Final = 1 << 30
_LEAST_ARENA: Final = 64 << 20
_GPU_DEVICES: Final = (Path("/dev/nvidiactl"), Path("/dev/kfd"))
_SHARED_MEMORY: Final = Path("/dev/shm")
_NO_GPU: Final = "it needs a GPU; `make race` in a checkout compares it on the CPU, too"
# vLLM's sockets have names of 36 characters, and a socket's path has at most 107.
_LONGEST_PLACE: Final = 107 - len("/pagetier-bench-01234567/1-2/") - 36


class System(Enum):
    """What is compared. The values are the names in the output."""

    ALONE = "vLLM alone"
    NATIVE = "native offloading"
    PAGETIER = "pagetier"


class ServeArguments(msgspec.Struct, frozen=True, kw_only=True):
    """The command line; command.py describes the options.

    Attributes:
        model: The model, as `vllm serve` takes it.
        vllm_arguments: Further arguments of vLLM.
        arena: Bytes for pagetier and for native offloading; None for a part of the available memory.
    """

    model: str
    vllm_arguments: Sequence[str]
    trace: Path | None
    block_tokens: int
    requests: int | None
    chats: int | None
    prompt_tokens: int
    answer_tokens: int
    at_once: int
    rounds: int
    arena: int | None
    frame_size: int
    no_native: bool
    seed: int
    json: bool


def run(arguments: ServeArguments) -> int:
    """Measures, prints the report and returns the exit code."""
    try:
        with exiting_on_sigterm(), tempfile.TemporaryDirectory(prefix="pagetier-bench-", dir=place()) as folder:
            report = Comparison(arguments, Path(folder)).measure()
    except BenchmarkError as error:
        _say(f"pagetier-bench: {error}")
        return error.code
    except KeyboardInterrupt:
        _say("pagetier-bench: interrupted; all servers are stopped and their files removed")
        return 128 + signal.SIGINT
    click.echo(msgspec.json.encode(report) if arguments.json else text_of(report))
    return Exit.OK


class Comparison:
    """Runs the rounds.

    Args:
        arguments: The command line.
        folder: A temporary folder.

    Raises:
        BenchmarkError: Something that it needs is missing.
    """

    def __init__(self, arguments: ServeArguments, folder: Path) -> None:
        check_arguments(arguments.vllm_arguments)
        vllm_program()
        program_path("pagetierd", "install pagetier in the environment of vLLM")
        self._arguments, self._folder = arguments, folder
        self._trace = _trace_of(arguments)
        self._arena_bytes = arena_size(arguments.arena, available_bytes(), shutil.disk_usage(_SHARED_MEMORY).free)
        self._systems = [each for each in System if each is not System.NATIVE or _native_is_compared(arguments)]
        self._prompts: list[BenchPrompt] = []

    def measure(self) -> BenchReport:
        """Runs all rounds and returns the report."""
        rounds, systems = self._arguments.rounds, self._systems
        self._announce()
        runs: dict[System, list[Run]] = {system: [] for system in systems}
        began = clock.now()
        for number in range(rounds):
            turn = number % len(systems)
            for system in systems[turn:] + systems[:turn]:
                runs[system].append(self._run(system, number))
            if left := rounds - number - 1:
                seconds = (clock.now() - began) / (number + 1) * left
                _say(f"round {number + 1} is done; {counted(left, 'round')} more: about {_duration(seconds)}")
        names = {system.value: done for system, done in runs.items()}
        return report_of(self._arguments.model, self._prompts, names, self._arguments.seed)

    def _announce(self) -> None:
        arguments, names = self._arguments, ", ".join(system.value for system in self._systems)
        command = f"`vllm serve {arguments.model}` {len(self._systems)} times"
        _say(f"{counted(arguments.rounds, 'round')}: each starts {command}: {names}")
        if System.NATIVE not in self._systems:
            _say("native offloading is left out: " + ("by --no-native" if _has_gpu() else _NO_GPU))
        _say(f"memory beside vLLM's own: {format_size(self._arena_bytes)} for one of them at a time (--arena)")
        _say("how long it takes depends on the size of vLLM's cache: the first start measures it ...")

    def _run(self, system: System, number: int) -> Run:
        """Starts one system with empty caches, sends all prompts and stops it."""
        began = clock.now()
        with ExitStack() as stack:
            folder = self._folder / f"{number}-{self._systems.index(system)}"
            folder.mkdir()
            daemon = None
            if system is System.PAGETIER:
                arena = (self._arena_bytes, self._arguments.frame_size)
                daemon = stack.enter_context(running_daemon(folder, *arena))
            server = stack.enter_context(self._serving(system, daemon, folder))
            if daemon:
                daemon.wait_for_engine(server.program)
            self._prompts = self._prompts or self._first_prompts(server)
            self._warm_up(server)
            started = clock.now()
            done = self._send_all(server, daemon)
            sent = clock.now()
        parts = f"start {_duration(started - began)}, prompts {_duration(sent - started)}"
        _say(f"round {number + 1}, {system.value}: {parts}, stop {_duration(clock.now() - sent)}")
        return done

    @contextmanager
    def _serving(self, system: System, daemon: BenchDaemon | None, folder: Path) -> Iterator[VllmServer]:
        arguments, environment = list(self._arguments.vllm_arguments), own_environment()
        if system is System.NATIVE:
            arguments += ["--kv-offloading-size", f"{self._arena_bytes / _GIB:.3f}"]
        if daemon:
            environment |= {"PAGETIER": "1", "PAGETIER_SOCKET": str(daemon.socket)}
        with serving(self._arguments.model, arguments, environment, folder) as server:
            yield server

    def _first_prompts(self, server: VllmServer) -> list[BenchPrompt]:
        """Returns the prompts, which depend on the engine's cache and its longest prompt, and says what they are."""
        arguments, longest = self._arguments, server.longest - self._arguments.answer_tokens
        if self._trace is not None:
            prompts, what = prompts_of_trace(self._trace, longest, arguments.seed), "requests of the trace"
            what = f"{len(prompts)} of {len(self._trace)} {what}, those of at most {longest:,} tokens"
        else:
            chats = self._chats(min(arguments.prompt_tokens, longest), server.cache_tokens())
            prompts, what = chats.prompts(), chats.describe()
        if not prompts:
            raise BenchmarkError(f"no request of the trace has a full block and at most {longest} tokens", Exit.USAGE)
        _say(f"prompts: {what}")
        self._estimate(server, prompts)
        return prompts

    def _chats(self, tokens: int, cache: int) -> Chats:
        """Returns the chats for an engine whose own cache holds `cache` tokens; 0 if it does not say so.

        Raises:
            BenchmarkError: Their number is neither given nor known.
        """
        given, needed = self._arguments.chats, chats_needed(cache, tokens)
        if not (given or cache):
            raise BenchmarkError("vLLM's /metrics do not have the size of its cache: give --chats")
        if cache:
            _say(f"vLLM's own cache holds {cache:,} tokens")
        if given and cache and given < needed:
            _say(f"note: it may still have a chat that returns, so that no other can add a hit: use --chats {needed}")
        return Chats(given or needed, tokens, self._arguments.seed)

    def _estimate(self, server: VllmServer, prompts: Sequence[BenchPrompt]) -> None:
        """Says how long all rounds take if no prompt hits, by the time of one prompt."""
        self._warm_up(server)
        probe = warm_up_prompt(len(prompts[-1].tokens), self._arguments.seed + 1)
        seconds = server.complete(probe, self._arguments.answer_tokens).seconds / len(probe)
        tokens, runs = sum(len(prompt.tokens) for prompt in prompts), len(self._systems) * self._arguments.rounds
        each = tokens * seconds / self._arguments.at_once
        _say(f"a run computes {tokens:,} tokens in about {_duration(each)} if none hits; {runs} runs")
        if self._trace is None and self._arguments.chats is None:
            _say("for a shorter run make vLLM's own cache smaller: append `-- --num-gpu-blocks-override N`")

    def _warm_up(self, server: VllmServer) -> None:
        longest = max((len(prompt.tokens) for prompt in self._prompts), default=self._arguments.prompt_tokens)
        tokens = min(longest, server.longest - self._arguments.answer_tokens)
        server.complete(warm_up_prompt(tokens, self._arguments.seed), self._arguments.answer_tokens)

    def _send_all(self, server: VllmServer, daemon: BenchDaemon | None) -> Run:
        pool = ThreadPoolExecutor(self._arguments.at_once)
        try:
            sent = pool.map(lambda prompt: server.complete(prompt.tokens, self._arguments.answer_tokens), self._prompts)
            answers = tuple(sent)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
        return Run(
            answers=answers,
            engine_bytes=server.resident_bytes(daemon.name if daemon else "pagetier-bench"),
            daemon_bytes=daemon.resident_bytes if daemon else 0,
            evicted_pages=daemon.evicted_pages if daemon else 0,
        )


def place() -> Path:
    """Returns the folder for temporary files: the usual one, unless the paths of sockets would be too long there."""
    usual = Path(tempfile.gettempdir())
    return usual if len(bytes(usual)) <= _LONGEST_PLACE else Path("/tmp")


def arena_size(wanted: int | None, available: int, shared: int) -> int:
    """Returns the bytes of the arena.

    Args:
        wanted: What the user wants; None for a third of the available memory.
        available: The memory that is available.
        shared: The free bytes of /dev/shm.

    Raises:
        BenchmarkError: There is less memory.
    """
    nbytes = min(available // 3, shared * 9 // 10) if wanted is None else wanted
    if nbytes < _LEAST_ARENA:
        raise BenchmarkError(f"an arena of {format_size(nbytes)} is too small: it needs at least 64 MiB", Exit.USAGE)
    if nbytes > min(available, shared):
        have = f"{format_size(available)} of memory are available and {format_size(shared)} of /dev/shm"
        raise BenchmarkError(f"too little memory for an arena of {format_size(nbytes)}: {have}", Exit.USAGE)
    return nbytes


def _trace_of(arguments: ServeArguments) -> Trace | None:
    if arguments.trace is None:
        return None
    try:
        return read_trace(arguments.trace, arguments.block_tokens, arguments.requests)
    except (TraceError, OSError) as error:
        raise BenchmarkError(str(error), Exit.USAGE) from error


def _native_is_compared(arguments: ServeArguments) -> bool:
    return _has_gpu() and not arguments.no_native


def _has_gpu() -> bool:
    return any(device.exists() for device in _GPU_DEVICES)


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _say(line: str) -> None:
    click.echo(line, err=True)
