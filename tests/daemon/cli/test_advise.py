"""Tests `pagetier advise` against a real daemon, and the reasons why pages were not found."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from disk_daemon import FRAMES, DiskDaemon
from eventually import PATIENCE_S, eventually, pace
from lookup_advice import PAGE, advice, advice_after, serve
from metrics_scrape import scrape
from pagetier.client import Client
from pagetier.client.adapters import count_lookup
from pagetier.client.group_match import GroupKeys, Lookup
from pagetier.client.groups import FullAttention, SlidingWindow
from pagetier.daemon.stats.size_advice import knee
from pagetier.shm.units import format_size
from running_daemon import RunningDaemon, namespace

KEYS = {
    "total", "namespaces", "arena_bytes", "disk_bytes", "present_disk", "seconds", "tokens_per_second", "knee_bytes",
    "curve",
    "sampled_share", "lookups", "lost_lookups", "hit_ratio_of_all", "warning",
}  # fmt: skip
LEFT_OUT = "those never stored are left out (pagetier stats counts them)"
TOTAL_KEYS = {"namespace", "tokens", "hit_ratio", "endless_hit_ratio", "memory", "disk", "absent"}


def absent(daemon: RunningDaemon) -> dict[str, int]:
    result = daemon.pagetier("stats", "--json")
    tokens: dict[str, int] = json.loads(result.stdout)["absent"]
    return {reason: count for reason, count in tokens.items() if count}


def test_the_prediction_for_the_present_arena_is_what_it_hits() -> None:
    draw, pages, found = random.Random(5), 0, 0
    with RunningDaemon("16MiB", "64KiB", "--set", "evict.policy=lru") as daemon, daemon.client() as client:
        for _ in range(400):
            prompt = min(int(draw.paretovariate(0.4)), 500)
            keys = namespace(lora=f"tenant {prompt % 2}").keys([prompt, *range(16 * 5)])
            found += serve(client, keys)
            pages += len(keys)
        values = advice_after(daemon, 400)
        assert set(values) == KEYS
        assert set(values["total"]) == TOTAL_KEYS
        total = values["total"]
        assert total["tokens"] == pages * 16
        assert total["hit_ratio"] == pytest.approx(found / pages) == pytest.approx(values["hit_ratio_of_all"])
        assert values["warning"] == ""
        predicted = {one["size"]: one["hit_ratio"] for one in total["memory"]}
        assert [*predicted] == ["0.5x", "1x", "2x", "4x"]
        assert predicted["1x"] == pytest.approx(found / pages, abs=0.02)
        ratios = [*predicted.values(), *(one["hit_ratio"] for one in total["disk"]), total["endless_hit_ratio"]]
        assert sorted(ratios[:4]) == ratios[:4]
        assert ratios[-1] == max(ratios) > ratios[0]
        assert sum(one["tokens"] for one in values["namespaces"]) == total["tokens"]
        assert sorted(one["namespace"] for one in values["namespaces"]) == sorted(
            namespace(lora=f"tenant {number}").name for number in range(2)
        )
        assert set(absent(daemon)) == {"never_stored", "evicted_from_memory"}
        assert not any(one["lower_bound"] for one in (*total["memory"], *total["disk"]))
        text = daemon.pagetier("advise", "--prefill-rate", "1000").stdout
        assert all(part in text for part in ("memory 0.5x", "disk   10x", "endless", "engines", "never stored"))
        assert "at least" not in text.lower() and "and disk" not in text
        assert max(map(len, text.splitlines())) <= 80
        assert text.splitlines()[0] == daemon.snapshot().lookups.text, "one number for one thing"
        assert text.splitlines()[0] in daemon.pagetier("stats", "--short").stdout


def memory(values: dict[str, Any]) -> dict[str, float]:
    """Returns the hit ratios that are predicted for sizes of the arena."""
    return {one["size"]: one["hit_ratio"] for one in values["total"]["memory"]}


def test_a_daemon_that_evicts_by_cadence_predicts_the_least_that_it_finds(tmp_path: Path) -> None:
    draw, pages, found = random.Random(11), 0, 0
    flags = ("--set", f"metrics.listen={tmp_path / 'metrics.sock'}")
    with RunningDaemon("16MiB", "64KiB", *flags) as daemon, daemon.client() as client:
        for number in range(600):
            prompt = min(int(draw.paretovariate(0.4)), 500)
            keys = namespace().keys([prompt, *range(16 * 4 - 1), *[number] * 16])
            found += serve(client, keys)
            pages += len(keys)
            pace(0.001)  # the policy learns from times between uses, in 1/1024 s
        values = advice_after(daemon, 600)
        total = values["total"]
        assert all(one["policy"] == "lru" for one in (*total["memory"], *total["disk"]))
        assert all(one["lower_bound"] for one in total["memory"])
        assert not any(one["lower_bound"] for one in total["disk"]), "not all pages may be written to a disk"
        predicted = memory(values)
        assert 0 < predicted["0.5x"] < predicted["1x"] <= found / pages + 0.02
        text = daemon.pagetier("advise", "--svg", str(tmp_path / "curve.svg")).stdout
        lines = {" ".join(line.split()[:2]): line for line in text.splitlines()}
        assert lines["now 16.0"].split()[3:5] == ["measured", f"{found / pages:.1%}"]
        assert f"at least {predicted['2x']:.1%}" in lines["memory 2x"] and "at least" not in lines["disk 10x"]
        assert "at least LRU" in (tmp_path / "curve.svg").read_text()
        samples = scrape(tmp_path / "metrics.sock")["pagetier_predicted_hit_ratio"].samples
        assert {one.labels["size"]: one.value for one in samples} == pytest.approx(predicted)
        daemon.kill()
        daemon.start()
        assert memory(advice_after(daemon, 600)) == pytest.approx(predicted)


def test_a_daemon_that_dies_loses_nothing() -> None:
    with RunningDaemon() as daemon, daemon.client() as client:
        for prompt in (1, 2, 1, 2, 1):
            serve(client, namespace().keys([prompt, *range(64)]))
        before = advice_after(daemon, 5)
        daemon.kill()
        daemon.start()
        after = advice_after(daemon, 5)
    assert after["total"]["hit_ratio"] == pytest.approx(before["total"]["hit_ratio"])
    assert [ratio for _, ratio in after["curve"]] == pytest.approx([ratio for _, ratio in before["curve"]])


def test_without_lookups_it_says_so(tmp_path: Path) -> None:
    with RunningDaemon() as fresh:
        assert advice(fresh) is None
        assert "no lookups were counted yet" in fresh.pagetier("advise").stdout
        drawn = fresh.pagetier("advise", "--svg", str(tmp_path / "curve.svg"))
        assert drawn.exit_code == 1 and "there is nothing to draw yet" in drawn.output
        assert len(drawn.output.splitlines()) == 1 and not (tmp_path / "curve.svg").exists()


def test_lookups_that_no_store_follows_are_reported() -> None:
    stored, absent = namespace().keys(range(16 * 40)), namespace().keys([7, *range(16 * 60)])
    with RunningDaemon() as daemon, daemon.client() as client:
        for _ in range(10):
            client.match(absent).release()
        assert eventually(lambda: "10 lookups found nothing" in daemon.pagetier("advise").stdout)
        assert advice(daemon) is None
        client.store(stored, [bytes(PAGE)] * len(stored))
        for _ in range(10):
            client.match(stored).release()
        values = advice_after(daemon, 20)
        memory = daemon.snapshot().tiers.memory
        assert (values["total"]["hit_ratio"], values["hit_ratio_of_all"]) == (1, pytest.approx(memory.hit_ratio))
        assert "100.0% counts a miss only if" in values["warning"] and "found 40.0% of all" in values["warning"]
        assert f"warning: {values['warning']}" in " ".join(daemon.pagetier("advise").stdout.split())


def test_nothing_is_predicted_from_a_few_lookups() -> None:
    with RunningDaemon() as daemon, daemon.client() as client:
        serve(client, namespace().keys(range(16 * 5)))
        serve(client, namespace().keys(range(16 * 8)))
        advice_after(daemon, 2)
        text = daemon.pagetier("advise").stdout
        found = "2 lookups so far, pagetier had 38.5% of the prompts' tokens"
        few = f"too little to advise on: {found}; {LEFT_OUT}; ask again from 20 lookups on"
        assert few in " ".join(text.split()) and "never stored" in text
        assert "memory" not in text and "endless" not in text and "no lookups" not in text
        for number in range(18):
            serve(client, namespace().keys(range(number, 16 * 3)))
        advice_after(daemon, 20)
        enough = daemon.pagetier("advise").stdout
        assert "memory 0.5x" in enough
        own, _, whole = " ".join(enough.split()).partition("Below, prompts count whole, also tokens that engines had")
        assert own.endswith("of the tokens that engines lacked were found "), "no reader takes one for the other"
        assert f"(20 lookups; those 1d ago count 1/e); {LEFT_OUT}" in whole


def test_a_picture_is_drawn_or_the_reason_is_said(tmp_path: Path) -> None:
    path = tmp_path / "curve.svg"
    with RunningDaemon() as daemon, daemon.client() as client:
        serve(client, namespace().keys(range(64)))
        advice_after(daemon, 1)
        assert daemon.pagetier("advise", "--svg", str(path)).exit_code == 0
        failed = daemon.pagetier("advise", "--svg", str(tmp_path / "absent" / "curve.svg"))
    ElementTree.parse(path)
    assert failed.exit_code == 1
    assert "cannot write the picture" in failed.output
    assert "No such file" in failed.output


def _flush(daemon: RunningDaemon, _: Client) -> None:
    assert daemon.pagetier("flush", "--all", "--yes").exit_code == 0


def _fill(_: RunningDaemon, client: Client) -> None:
    for number in range(1000, 1000 + 60):
        client.store(namespace().keys([number, *range(16 * 5)]), [bytes(PAGE)] * 5)


@pytest.mark.parametrize(
    ("before", "reason"), [(None, "never_stored"), (_flush, "dropped"), (_fill, "evicted_from_memory")]
)
def test_the_reason_of_a_miss_is_counted(before: Callable[[RunningDaemon, Client], None] | None, reason: str) -> None:
    keys = namespace().keys([7, *range(16 * 5)])
    with RunningDaemon() as daemon, daemon.client() as client:
        if before is not None:
            client.store(keys, [bytes(PAGE)] * len(keys))
            before(daemon, client)
        assert serve(client, keys) == 0
        advice_after(daemon, 1)
        assert absent(daemon) == {reason: len(keys) * 16}
        assert "Not found: 100%" in daemon.pagetier("stats").stdout


def test_what_is_computed_although_it_is_there_is_a_reason_of_misses() -> None:
    """80 tokens are in no tier, and 60 of those that a tier has are computed: three of seven."""
    keys, slower = namespace().keys(range(16 * 5)), {"memory_slower_tokens": 10, "disk_slower_tokens": 50}
    with RunningDaemon() as daemon, daemon.client() as client:
        assert serve(client, keys) == 0
        advice_after(daemon, 1)
        count_lookup(client.session, Lookup(0, 0, 0, 0, 60, **slower))
        shown = daemon.pagetier("stats").stdout
        few = daemon.pagetier("advise").stdout
        for _ in range(19):
            client.match(keys).release()
        advice_after(daemon, 20)
        enough = daemon.pagetier("advise").stdout
    assert "Not found: 57% never stored, 43% computed because loading is slower\n" in shown
    for text in (few, enough):
        rows = [" ".join(line.split()) for line in text.splitlines()]
        at = rows.index("Tokens that were not found share")
        assert rows[at + 1 : at + 3] == ["never stored 57.1%", "computed because loading is slower 42.9%"]


def test_a_page_whose_store_was_rejected_counts_as_dropped() -> None:
    keys, others = namespace().keys([7, *range(16 * 5)]), namespace(salt="others").keys(range(16 * 256))
    with RunningDaemon("16MiB", "64KiB") as daemon, daemon.client() as client:
        client.store(others, [bytes(PAGE)] * len(others))
        with client.match(others) as pinned:
            assert len(pinned) == len(others)
            assert client.store(keys, [bytes(PAGE)] * len(keys)).stored == 0
        assert serve(client, keys) == 0
        advice_after(daemon, 2)
        assert absent(daemon) == {"dropped": len(keys) * 16}


def test_a_page_that_the_disk_evicted_is_recognized() -> None:
    keys = namespace().keys([7, *range(16 * 5)])
    with DiskDaemon(FRAMES, "8MiB", "--set", "disk.write=through") as daemon, daemon.client() as client:
        assert serve(client, keys) == 0
        assert not daemon.save().trouble
        daemon.fill(400)
        with client.match(keys) as match:
            assert len(match) == 0
        client.store(keys, [bytes(PAGE)] * len(keys))
        values = advice_after(daemon, 2)
        room = values["disk_bytes"]
        assert values["present_disk"]["bytes"] == room
        assert absent(daemon) == {"never_stored": len(keys) * 16, "evicted_from_disk": len(keys) * 16}
        for _ in range(18):
            client.match(keys).release()
        advice_after(daemon, 20)
        assert 0 < room <= 8 << 20 and f"  and disk  {format_size(room):>10}" in daemon.pagetier("advise").stdout


def test_the_prediction_for_the_configured_disk_is_beside_what_was_found() -> None:
    draw, out = random.Random(6), [bytearray(PAGE) for _ in range(5)]
    flags = ("--set", "disk.write=through", "--set", "evict.policy=lru")
    with DiskDaemon(2 * FRAMES, "8MiB", *flags) as daemon, daemon.client(timeout=PATIENCE_S) as client:
        for _ in range(150):
            keys = namespace().keys([min(int(draw.paretovariate(0.5)), 60), *range(16 * 5 - 1)])
            with client.match(keys) as match:
                loaded = client.load(match, out)
            client.store(keys, [bytes(PAGE)] * len(keys)) if loaded < len(keys) else None
            assert not daemon.save().trouble
        values = advice_after(daemon, 150)
        measured, present = values["total"]["hit_ratio"], values["present_disk"]
        predicted = {one["size"]: one["hit_ratio"] for one in values["total"]["memory"]}
        assert present["bytes"] == values["disk_bytes"] > 2 * values["arena_bytes"]
        assert predicted["2x"] < present["hit_ratio"] == pytest.approx(measured, abs=0.03)
        (row,) = (line for line in daemon.pagetier("advise").stdout.splitlines() if line.startswith("  and disk"))
        assert row.split()[-3:-1] == ["predicted", f"{present['hit_ratio']:.1%}"]


def test_a_prompt_that_memory_has_no_room_for_counts_whole() -> None:
    keys = namespace().keys(range(16 * 300))  # the arena has 256 frames
    with RunningDaemon() as daemon, daemon.client() as client:
        for _ in range(2):
            with client.match(keys) as match:
                assert len(match) <= 256
            client.store(keys, [bytes(PAGE)] * len(keys))
        total = advice_after(daemon, 2)["total"]
    assert total["tokens"] == 2 * len(keys) * 16
    assert total["memory"][-1]["hit_ratio"] == total["endless_hit_ratio"] == pytest.approx(0.5)


def test_the_same_hashes_under_another_namespace_are_recognized() -> None:
    hashes = [sha256(bytes([number])).digest() for number in range(4)]
    with RunningDaemon() as daemon, daemon.client() as client:
        client.store(namespace(lora="a").keys_of_hashes(hashes), [bytes(PAGE)] * 4)
        assert serve(client, namespace(lora="b").keys_of_hashes(hashes)) == 0
        advice_after(daemon, 1)
        assert absent(daemon) == {"in_other_namespace": 4 * 16}


def test_matches_of_groups_count_once_and_by_full_attention() -> None:
    full, window = namespace(), namespace(group="window")
    tokens = range(16 * 6)
    groups = [
        GroupKeys(FullAttention(16), full.keys(tokens)),
        GroupKeys(SlidingWindow(16, 32), window.keys(tokens)),
    ]
    with RunningDaemon() as daemon, daemon.client() as client:
        for asked in groups:
            client.store(asked.keys, [bytes(PAGE)] * len(asked.keys))
        for _ in range(3):
            client.match_groups(groups).release()
        with client.find_groups(groups) as match:
            assert match.tokens == len(tokens)
        values = advice_after(daemon, 3)
    assert values["total"]["tokens"] == 3 * len(tokens)
    assert [one["namespace"] for one in values["namespaces"]] == [full.name]


@pytest.mark.parametrize(
    ("curve", "endless", "size"),
    [
        ([], 0.0, 0),
        ([(1, 0.0), (2, 0.0)], 0.0, 0),
        ([(1, 0.2), (2, 0.45), (4, 0.5), (8, 0.55), (16, 0.6)], 0.6, 2),
        ([(1, 0.6), (2, 0.6)], 0.6, 1),
    ],
)
def test_the_knee_is_where_more_memory_begins_to_help_less(
    curve: list[tuple[int, float]], endless: float, size: int
) -> None:
    assert knee(curve, endless) == size


@pytest.mark.parametrize("rate", ["nan", "inf", "0", "-1", "many"])
def test_a_rate_that_is_no_number_of_tokens_is_refused(daemon: RunningDaemon, rate: str) -> None:
    refused = daemon.pagetier("advise", "--prefill-rate", rate)
    assert refused.exit_code == 2 and "prefill-rate" in refused.output
