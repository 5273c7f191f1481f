"""Runs the example of disaggregated prefill: its answers are those of one engine, and all pages are found."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest

from eventually import eventually
from free_ports import free_ports
from harnessed_models import MODELS, assert_nothing_is_left, engine_of, keys_of
from one_host import Scene, ask, ask_after_reset, exact, prompt, scene_of
from pagetier.client import Client
from running_daemon import RunningDaemon
from vllm_server import serving

PROXY = Path(__file__).parents[2] / "examples/disaggregated_prefill/proxy.py"
PROMPTS = [prompt(at, 300 + 200 * at) for at in range(4)]
_MOST_STEPS = 2
ROLE = {"kv_connector": "PagetierConnector"}


@contextmanager
def proxy(prefill: int, decode: int) -> Iterator[int]:
    """Yields the port of the example's proxy between two servers."""
    (port,) = free_ports(1)
    urls = [f"http://127.0.0.1:{number}" for number in (prefill, decode)]
    command = [sys.executable, str(PROXY), "--prefill", urls[0], "--decode", urls[1], "--port", str(port)]
    process = subprocess.Popen(command)
    try:
        yield port
    finally:
        process.kill()
        process.wait()


def post(port: int, body: dict[str, Any]) -> dict[str, Any]:
    """Returns the answer to a completion request; the server may have been started a moment ago."""
    assert eventually(lambda: listens(port)), "the proxy does not listen"
    with closing(http.client.HTTPConnection("127.0.0.1", port)) as connection:
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read()
        assert answer.status == 200, text
        return dict(json.loads(text))


def listens(port: int) -> bool:
    """Returns whether a server on this host accepts connections."""
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except ConnectionRefusedError:
        return False
    return True


def role(name: str) -> list[str]:
    return ["--kv-transfer-config", json.dumps(ROLE | {"kv_role": name})]


def completion(tokens: list[int]) -> dict[str, Any]:
    return {"model": "tiny", "prompt": tokens, "max_tokens": 8, "temperature": 0, "logprobs": 3, "ignore_eos": True}


def choices(answers: list[dict[str, Any]]) -> list[tuple[str, Any]]:
    return [(answer["choices"][0]["text"], answer["choices"][0]["logprobs"]) for answer in answers]


def test_the_example_answers_as_one_engine_does() -> None:
    with scene_of("llama") as scene, serving(scene, *role("kv_producer")) as prefill:
        one = [post(prefill.port, completion(tokens)) for tokens in PROMPTS]
        prefill.post("/reset_prefix_cache")
        assert scene.daemon.pagetier("flush", "--all", "--yes").exit_code == 0
        with serving(scene, *role("kv_consumer")) as decode, proxy(prefill.port, decode.port) as port:
            stored = scene.daemon.header().granted
            two = [post(port, completion(tokens)) for tokens in PROMPTS]
            assert choices(two) == choices(one)
            hits = sum(scene.hit(len(tokens)) for tokens in PROMPTS)
            # On a busy machine the decode engine may be asked before the last page is stored.
            assert 0 < decode.counter("vllm:external_prefix_cache_hits") <= hits
            assert scene.daemon.header().granted > stored


def test_the_decode_engine_finds_the_last_page_once_it_is_stored() -> None:
    with scene_of("llama") as scene:
        prefill = scene.engine(transfer={"kv_role": "kv_producer"})
        decode = scene.engine(transfer={"kv_role": "kv_consumer"})
        with prefill, decode:
            ask(prefill, prompt(90)), ask(decode, prompt(90))  # both are attached and warm
            alone = [ask(prefill, tokens)["answers"][0] for tokens in PROMPTS]
            forget_all(scene, prefill)
            for tokens, answer in zip(PROMPTS, alone, strict=True):
                ask(prefill, tokens, tokens=1)
                scene.settle()
                result = ask(decode, tokens)
                assert exact(result) == exact({"answers": [answer]})
                assert result["external"] == scene.hit(len(tokens))


@pytest.mark.parametrize("model", MODELS)
def test_the_decode_engine_finds_the_last_page_two_steps_after_the_prefills_last(
    model: str, daemon: RunningDaemon, client: Client
) -> None:
    """Counts steps of vLLM's scheduler, of which a worker ends the stores of each before the next."""
    salt = token_hex(8)
    same: dict[str, Any] = {"salt": salt, "weights": "tiny"}  # the files of the model may be younger than this process
    prefill = engine_of(model, daemon, client, mode="save_only", **same)
    decode = engine_of(model, daemon, client, mode="load_only", **same)
    request = prefill.submit(1, 100, answer=1)

    def found() -> int:
        with client.match_groups([keys_of(prefill, request, at) for at in range(len(prefill.groups))]) as match:
            return match.tokens

    while not request.num_output_tokens:
        prefill.step()
    prefill.end_stores()
    steps = 0
    while found() < 96:
        assert steps < _MOST_STEPS, f"{found()} of 96 tokens are found {steps} steps after the last one"
        prefill.step()
        prefill.end_stores()
        steps += 1
    loaded = decode.submit(1, 100)
    decode.step()
    spaces = [[group.namespace.digest.hex()[:8] for group in engine.groups] for engine in (prefill, decode)]
    assert loaded.num_computed_tokens == 96, f"{loaded.status}, {decode.half._client}, {spaces}"
    assert decode.run() == 96 and prefill.run() == 0
    for engine in (prefill, decode):
        assert_nothing_is_left(engine, daemon)


def forget_all(scene: Scene, engine: Any) -> None:
    scene.settle()
    ask_after_reset(engine, [7], tokens=1)
    scene.settle()
    assert scene.daemon.pagetier("flush", "--all", "--yes").exit_code == 0


def test_a_child_that_only_saves_is_safe_beside_another_loader(tmp_path: Path) -> None:
    """vLLM's example connector loads in the step that computes: pages of such requests are not stored."""
    shared = {
        "kv_connector": "ExampleConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"shared_storage_path": str(tmp_path)},
    }
    with scene_of("llama") as scene:
        ours: dict[str, Any] = ROLE | {"kv_role": "kv_both", "kv_connector_module_path": "pagetier.client.engines.vllm"}
        ours["kv_connector_extra_config"] = {"socket": str(scene.daemon.socket), "mode": "save_only"}
        children = {"connectors": [shared, ours]}
        transfer = {"kv_connector": "MultiConnector", "kv_connector_extra_config": children}
        with scene.engine(transfer=transfer) as both, scene.engine() as other:
            ask(both, prompt(90))  # the page shapes come with the first step
            first = ask(both, PROMPTS[1])
            scene.settle()
            assert ask(other, PROMPTS[1])["external"] == scene.hit(len(PROMPTS[1]))
            assert scene.daemon.pagetier("flush", "--all", "--yes").exit_code == 0
            again = ask_after_reset(both, PROMPTS[1])
            assert exact(again) == exact(first) and again["external"] > 0, "the other connector loads"
            scene.settle()
            assert ask_after_reset(other, PROMPTS[1])["external"] == 0
