"""Runs `vllm serve` as users do, and sends requests to it."""

from __future__ import annotations

import http.client
import re
import signal
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

import msgspec

from pagetier.client.cli.bench.programs import BenchmarkError, Program, program_path
from pagetier.client.cli.bench.resident import session_bytes
from pagetier.shm.exit_codes import Exit

_HOST: Final = "127.0.0.1"
_START_S: Final = 1800.0  # large weights, and kernels that are compiled for the first time
_STOP_S: Final = 60.0
_ANSWER_S: Final = 600.0
_PROBE_S: Final = 5.0
_OK: Final = 200
_JSON: Final = {"Content-Type": "application/json"}
# By default vLLM on a CPU keeps one more core free if it has a connector: the systems would compute on other cores, and
# round differently.
_SAME_CORES: Final = {"VLLM_CPU_OMP_THREADS_BIND": "nobind"}
_REQUIRED: Final = ("--host", "--port", "--kv-transfer-config", "--kv-offloading-size", "--api-key", "--uds")
_CACHE_CONFIG: Final = re.compile(r"^vllm:cache_config_info\{(.*)\}", re.MULTILINE)
_LABEL: Final = re.compile(r'(\w+)="([^"]*)"')


class Answer(msgspec.Struct, frozen=True):
    """The response to one request.

    Attributes:
        first_token_seconds: Seconds until its first token.
        seconds: Seconds until its end.
        prompt_tokens: The tokens of the prompt.
        hit_tokens: Those of them that were cached, by the engine or by a connector.
        tokens: The IDs of the tokens of the answer.
    """

    first_token_seconds: float
    seconds: float
    prompt_tokens: int
    hit_tokens: int
    tokens: tuple[int, ...]


class _Details(msgspec.Struct, frozen=True):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    prompt_tokens_details: _Details | None = None


class _StreamedChoice(msgspec.Struct, frozen=True):
    token_ids: list[int] | None = None


class _Chunk(msgspec.Struct, frozen=True):
    """The part of an event of a streamed completion that is read here."""

    choices: list[_StreamedChoice] = []
    usage: _Usage | None = None


class VllmServer:
    """A `vllm serve` that is healthy.

    Attributes:
        program: Its process.
        longest: The most tokens of a prompt and its answer.
    """

    def __init__(self, program: Program, port: int) -> None:
        self.program, self._port = program, port
        program.wait_until(self._is_healthy, _START_S)
        (served, *_) = msgspec.json.decode(self._get("/v1/models"))["data"]
        self._model: str = served["id"]
        self.longest: int = served["max_model_len"]

    def cache_tokens(self) -> int:
        """Returns the tokens that the engine's own cache holds; 0 if the engine does not say so."""
        found = _CACHE_CONFIG.search(self._get("/metrics").decode())
        labels: Mapping[str, str] = dict(_LABEL.findall(found[1])) if found else {}
        try:
            return int(labels["num_gpu_blocks"]) * int(labels["block_size"])
        except (KeyError, ValueError):
            return 0

    def resident_bytes(self, segments: str) -> int:
        """Returns the resident bytes of its processes without the segments of a daemon."""
        return session_bytes(self.program.pid, segments)

    def complete(self, prompt: Sequence[int], answer_tokens: int) -> Answer:
        """Sends one request for exactly `answer_tokens` tokens.

        Returns:
            The answer.

        Raises:
            BenchmarkError: The request failed.
        """
        with closing(http.client.HTTPConnection(_HOST, self._port, timeout=_ANSWER_S)) as connection:
            began = time.perf_counter()
            try:
                connection.request("POST", "/v1/completions", self._body(prompt, answer_tokens), _JSON)
                response = connection.getresponse()
                if response.status != _OK:
                    raise self.program.error(f"a request failed ({response.status}): {response.read(500)!r}")
                return _read_answer(response, began)
            except (OSError, http.client.HTTPException, msgspec.MsgspecError) as error:
                raise self.program.error(f"a request failed: {error!r}") from error

    def _body(self, prompt: Sequence[int], answer_tokens: int) -> bytes:
        body = {"model": self._model, "prompt": list(prompt), "max_tokens": answer_tokens, "min_tokens": answer_tokens}
        body |= {"temperature": 0, "ignore_eos": True, "return_token_ids": True}
        return msgspec.json.encode(body | {"stream": True, "stream_options": {"include_usage": True}})

    def _is_healthy(self) -> bool:
        try:
            self._get("/health")
        except (OSError, http.client.HTTPException):
            return False
        return True

    def _get(self, path: str) -> bytes:
        with closing(http.client.HTTPConnection(_HOST, self._port, timeout=_PROBE_S)) as connection:
            connection.request("GET", path)
            response = connection.getresponse()
            if response.status != _OK:
                raise http.client.HTTPException(f"{path}: {response.status}")
            return response.read()


def _read_answer(response: http.client.HTTPResponse, began: float) -> Answer:
    decoder = msgspec.json.Decoder(_Chunk)
    first, usage, tokens = 0.0, _Usage(0), list[int]()
    for line in response:
        data = line.removeprefix(b"data: ").strip()
        if data in (b"", b"[DONE]"):
            continue
        chunk = decoder.decode(data)
        if chunk.choices and not first:
            first = time.perf_counter() - began
        tokens += (token for choice in chunk.choices for token in choice.token_ids or ())
        usage = chunk.usage or usage
    if not first or not usage.prompt_tokens:
        raise http.client.HTTPException("the answer has no token or no usage")
    details = usage.prompt_tokens_details or _Details()
    seconds = time.perf_counter() - began
    return Answer(first, seconds, usage.prompt_tokens, details.cached_tokens or 0, tuple(tokens))


def check_arguments(arguments: Sequence[str]) -> None:
    """Raises BenchmarkError if the user's arguments of vLLM have one that the benchmark sets, or that it cannot use."""
    given = {argument.partition("=")[0].replace("_", "-") for argument in arguments}
    if taken := given.intersection(_REQUIRED):
        raise BenchmarkError(f"leave out {', '.join(sorted(taken))}: the benchmark sets or excludes it", Exit.USAGE)


@contextmanager
def serving(model: str, arguments: Sequence[str], environment: Mapping[str, str], folder: Path) -> Iterator[VllmServer]:
    """Yields a server that is healthy, and ends it.

    Args:
        model: The model, as `vllm serve` takes it.
        arguments: Further arguments of vLLM.
        environment: The variables of its environment. Unless they bind its threads to cores, none are bound.
        folder: A folder for its log and its sockets.

    Raises:
        BenchmarkError: It does not start.
    """
    port = _free_port()
    command = [str(vllm_program()), "serve", model, "--host", _HOST, "--port", str(port)]
    command += ["--enable-prompt-tokens-details", *arguments]
    variables = {**_SAME_CORES, **environment, "VLLM_RPC_BASE_PATH": str(folder)}  # vLLM leaves its sockets there
    with Program(command, variables, folder / "vllm.log", signal.SIGINT, _STOP_S) as program:
        yield VllmServer(program, port)


def vllm_program() -> Path:
    """Returns the program `vllm`. Raises BenchmarkError if there is none."""
    return program_path("vllm", "install vLLM and pagetier in one environment, and run this command from there")


def _free_port() -> int:
    with socket.socket() as unused:
        unused.bind((_HOST, 0))
        port: int = unused.getsockname()[1]
        return port
