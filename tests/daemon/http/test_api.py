"""Tests the HTTP interface of a real daemon: what it answers, and that its description is true."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from openapi_spec_validator import validate

from bare_engine import SPACE as ENGINES
from bare_engine import Engine
from core_records import lock_words
from disk_daemon import FRAME, FRAMES, DiskDaemon, write_through
from eventually import eventually
from http_calls import call, request
from pagetier.client import Client, Keys
from pagetier.daemon.http.bodies import HintName
from pagetier.shm._core import HintKind
from running_daemon import RunningDaemon, namespace

SPACE = namespace()
TOKENS = list(range(16 * 6))
KEYS = SPACE.keys(TOKENS)
HASHED = namespace(lora="hashed")
HASHES = [bytes([number + 1]) * 32 for number in range(6)]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("http") / "http.sock"


@pytest.fixture(scope="module")
def daemon(place: Path) -> Iterator[DiskDaemon]:
    with write_through("--set", f"http.listen={place}") as running:
        running.wait_open()
        yield running


@pytest.fixture(scope="module")
def client(daemon: DiskDaemon) -> Iterator[Client]:
    """Yields a client that has stored the pages of two prompts, one of them named by hashes."""
    with daemon.client() as attached:
        for keys in (KEYS, HASHED.keys_of_hashes(HASHES)):
            attached.store(keys, np.ones((6, FRAME), np.uint8))
        daemon.until_written()
        yield attached


def named(keys: Keys) -> dict[str, Any]:
    return {"namespace": keys.namespace.digest.hex(), "keys": [key.hex() for key in keys]}


@pytest.mark.usefixtures("client")
@pytest.mark.parametrize(
    "pages",
    [
        named(SPACE.keys(range(16 * 8))),
        {"namespace": SPACE.digest.hex()[:10], "tokens": list(range(16 * 8 + 5))},
        {"namespace": HASHED.name, "hashes": [hashed.hex() for hashed in [*HASHES, bytes(32), b"x" * 32]]},
    ],
    ids=["keys", "tokens", "hashes"],
)
def test_a_lookup_finds_what_a_match_finds(place: Path, pages: dict[str, Any]) -> None:
    there = {"prefix": 6, "prefix_tokens": 96, "prefix_memory": 6, "memory": 6, "disk": 6, "disk_only": 0}
    assert call(place, "POST", "/v1/lookup", pages) == (200, {"pages": 8, **there, "note": ""})


def test_token_ids_that_name_no_page_are_answered_with_what_does(client: Client, place: Path) -> None:
    pages = {"namespace": HASHED.digest.hex(), "tokens": TOKENS}
    found = call(place, "POST", "/v1/lookup", pages)[1]
    assert (found["pages"], found["prefix"]) == (6, 0) and "found by their block hashes (hashes" in found["note"]
    hinted = call(place, "POST", "/v1/hint", pages | {"hint": "over"})[1]
    assert (hinted["applied"], hinted["note"]) == (0, found["note"])
    number = call(place, "POST", "/v1/prefetch", pages)[1]["id"]
    assert until_done(place, number)["reason"] == found["note"]


def test_a_lookup_does_not_count_as_a_use(daemon: DiskDaemon, client: Client, place: Path) -> None:
    import mmap

    with Path(f"/dev/shm/{daemon.name}.locks").open("rb") as file:
        segment = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        words = lock_words(segment, daemon.header().entries)
        before, lookups = words.copy(), daemon.snapshot().lookups
        assert call(place, "POST", "/v1/lookup", named(KEYS))[1]["prefix"] == 6
        assert (words["word"] == before["word"]).all() and (words["tick"] == before["tick"]).all()
        assert daemon.snapshot().lookups == lookups
        del words
        segment.close()


def test_pages_behind_a_gap_count_by_tier_and_not_as_prefix(client: Client, place: Path) -> None:
    keys = [key.hex() for key in KEYS]
    found = call(place, "POST", "/v1/lookup", named(KEYS) | {"keys": [*keys[:2], "00" * 32, *keys[2:]]})[1]
    assert (found["pages"], found["prefix"], found["memory"]) == (7, 2, 6)


def test_a_prefetch_reads_pages_from_disk(tmp_path: Path) -> None:
    place = tmp_path / "http.sock"
    with write_through("--set", f"http.listen={place}") as daemon, daemon.client() as client:
        daemon.wait_open()
        client.store(KEYS, np.ones((6, FRAME), np.uint8))
        daemon.push_out(client, KEYS)
        found = call(place, "POST", "/v1/lookup", named(KEYS))[1]
        assert (found["prefix"], found["prefix_memory"], found["disk_only"]) == (6, 0, 6)
        answer = request(place, "POST", "/v1/prefetch", json.dumps(named(KEYS)).encode())
        accepted = json.loads(answer.body)
        assert (answer.status, accepted["pages"]) == (202, 6)
        assert answer.headers["location"] == f"/v1/prefetch/{accepted['id']}"
        status = until_done(place, accepted["id"])
        assert (status["in_memory"], status["absent"], status["reason"]) == (6, 0, "")
        with client.match(KEYS) as match:
            assert len(match) == 6


def test_a_namespace_is_prefetched_and_kept_without_its_keys(tmp_path: Path) -> None:
    place, space = tmp_path / "http.sock", {"namespace": HASHED.name}
    with write_through("--set", f"http.listen={place}") as daemon, daemon.client() as client:
        for begin in range(3):
            keys = HASHED.keys_of_hashes([bytes([8 * begin + number]) * 32 for number in range(8)])
            client.store(keys, np.ones((8, FRAME), np.uint8))
            daemon.push_out(client, keys)
        keep = {"pages": 24, "applied": 0, "kept_bytes": 0, "only_on_disk": 24, "note": ""}
        assert call(place, "POST", "/v1/hint", space | {"hint": "keep"}) == (200, keep)
        accepted = call(place, "POST", "/v1/prefetch", space)[1]
        status = until_done(place, accepted["id"])
        # 14 of 16 frames are nine tenths.
        assert (accepted["pages"], status["pages"], status["in_memory"], status["no_room"]) == (24, 24, 14, 10)
        assert "a namespace gets at most nine tenths of the arena" in status["reason"]
        kept = call(place, "POST", "/v1/hint", space | {"hint": "keep"})[1]
        assert (kept["pages"], kept["only_on_disk"]) == (24, 10) and kept["applied"] > 0
        assert call(place, "POST", "/v1/hint", space | {"hint": "unkeep"})[1]["kept_bytes"] == 0
        assert call(place, "POST", "/v1/hint", space | {"hint": "over"})[0] == 400


def until_done(place: Path, number: str) -> dict[str, Any]:
    def status() -> dict[str, Any]:
        code, status = call(place, "GET", f"/v1/prefetch/{number}")
        assert code == 200 and status["state"] in ("reading", "done")
        return dict(status)

    assert eventually(lambda: status()["state"] == "done"), "the prefetch does not end"
    return status()


def test_a_prefetch_of_absent_pages_says_so(place: Path, client: Client) -> None:
    absent = SPACE.keys(range(1 << 20, (1 << 20) + 32))
    number = call(place, "POST", "/v1/prefetch", named(absent))[1]["id"]
    status = until_done(place, number)
    assert (status["absent"], "in no tier" in status["reason"]) == (2, True), status


def test_a_disk_that_is_away_is_why_pages_of_a_namespace_are_not_read_or_kept(tmp_path: Path) -> None:
    place, space = tmp_path / "http.sock", {"namespace": ENGINES.name}
    with DiskDaemon(FRAMES, "64MiB", "--set", f"http.listen={place}") as daemon, Engine(daemon) as engine:
        daemon.store_through(engine, range(2))

        def answers() -> tuple[str, str, str]:
            read = until_done(place, call(place, "POST", "/v1/prefetch", space)[1]["id"])["reason"]
            kept, unkept = (call(place, "POST", "/v1/hint", space | {"hint": hint})[1] for hint in ("keep", "unkeep"))
            assert (kept["pages"], kept["applied"]) == (2, 2)
            return read, kept["note"], unkept["note"]

        with daemon.away():
            read, kept, unkept = answers()
            assert "the disk tier is down, so its pages are not listed: " in read and "is a file" in read
            assert (kept, unkept) == (f"pages that are only on disk are not kept: {read}", "")
        assert answers() == ("", "", "")


def test_hints_apply_to_pages(daemon: DiskDaemon, client: Client, place: Path) -> None:
    body = named(KEYS) | {"hint": "keep", "ttl": 60}
    assert call(place, "POST", "/v1/hint", body) == (
        200,
        {"pages": 6, "applied": 6, "kept_bytes": 6 * FRAME, "only_on_disk": 0, "note": ""},
    )
    assert eventually(lambda: daemon.snapshot().hints.kept_bytes == 6 * FRAME)
    assert call(place, "POST", "/v1/hint", body | {"hint": "unkeep"})[1]["kept_bytes"] == 0
    assert call(place, "POST", "/v1/hint", body | {"hint": "within_20"})[1]["applied"] == 6


def test_there_is_a_name_for_every_hint() -> None:
    assert {name.kind for name in HintName} == set(HintKind) - {HintKind.NONE}


def test_an_unknown_hint_is_answered_with_those_there_are(client: Client, place: Path) -> None:
    status, answer = call(place, "POST", "/v1/hint", named(KEYS) | {"hint": "keeep"})
    assert status == 400 and all(name.value in answer["error"] for name in HintName)


def test_a_hint_without_effect_is_a_conflict(tmp_path: Path) -> None:
    place = tmp_path / "http.sock"
    flags = ("--set", f"http.listen={place}", "--set", "evict.policy=lru")
    with RunningDaemon("1MiB", "64KiB", *flags) as daemon, daemon.client() as client:
        client.store(KEYS, np.ones((6, FRAME), np.uint8))
        answer = call(place, "POST", "/v1/hint", named(KEYS) | {"hint": "keep"})
    why = 'with evict.policy = "lru" no page is kept: set evict.policy = "cadence" and reload the configuration'
    assert answer == (409, {"error": why})


def test_the_statistics_are_those_of_the_command(daemon: DiskDaemon, place: Path) -> None:
    printed = json.loads(daemon.pagetier("stats", "--json").output)
    served = call(place, "GET", "/v1/stats")[1]
    assert served["namespaces"] == printed["namespaces"] and served.keys() == printed.keys()


def test_metrics_and_health_are_served_too(place: Path, daemon: DiskDaemon) -> None:
    assert "pagetier_build_info" in request(place, "GET", "/metrics").body
    assert call(place, "GET", "/healthz") == (200, {"phase": "serving"})


def test_metrics_and_http_may_have_one_address(tmp_path: Path) -> None:
    place = str(tmp_path / "http.sock")
    with RunningDaemon("1MiB", "64KiB", "--set", f"http.listen={place}", "--set", f"metrics.listen={place}"):
        assert call(Path(place), "GET", "/v1/stats")[0] == 200
        assert request(Path(place), "GET", "/metrics").status == 200


def test_the_address_of_the_metrics_serves_nothing_else(tmp_path: Path) -> None:
    place = tmp_path / "metrics.sock"
    with RunningDaemon("1MiB", "64KiB", "--set", f"metrics.listen={place}"):
        assert call(place, "GET", "/healthz")[0] == 200
        code, body = call(place, "GET", "/v1/stats")
    assert (code, body["error"]) == (404, "only /metrics and /healthz are served here: see http.listen")


@pytest.fixture(scope="module")
def described(place: Path, daemon: DiskDaemon) -> dict[str, Any]:
    return dict(call(place, "GET", "/v1/openapi.json")[1])


def test_the_description_is_valid_openapi(described: dict[str, Any]) -> None:
    validate(described)


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("post", "/v1/lookup", named(KEYS), 200),
        ("post", "/v1/lookup", {}, 400),
        ("post", "/v1/lookup", named(KEYS) | {"namespace": "other"}, 404),
        ("post", "/v1/prefetch", named(KEYS) | {"timeout": 1}, 202),
        ("post", "/v1/hint", named(KEYS) | {"hint": "over"}, 200),
        ("get", "/v1/stats", None, 200),
        ("get", "/healthz", None, 200),
        ("get", "/v1/prefetch/0", None, 404),
    ],
)
@pytest.mark.usefixtures("client")
def test_responses_are_as_described(
    place: Path, described: dict[str, Any], method: str, path: str, body: object, status: int
) -> None:
    answer = call(place, method.upper(), path, body)
    operation = described["paths"][path.replace("prefetch/0", "prefetch/{id}")][method]
    schema = operation["responses"][str(status)]["content"]["application/json"]["schema"]
    assert answer[0] == status, answer
    jsonschema.validate(answer[1], schema | {"components": described["components"]})
    if body:
        taken = operation["requestBody"]["content"]["application/json"]["schema"]
        validator = jsonschema.Draft202012Validator(taken | {"components": described["components"]})
        assert validator.is_valid(body) == (status != 400)
