"""What is measured of vLLM in turns: the time to the first token, and requests per second."""

from __future__ import annotations

import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from measure import Result
from serving.contest import ALONE, CACHING, EVERYONE, NATIVE, OURS, Contest, MissedError, contest
from serving.engine import BLOCK
from serving.spread import AHEAD, NO_CLAIM, NOT_LESS, NOT_SLOWER, Claim, Spread, ratios, spread

LENGTHS = (260, 1030, 4100)  # none of them whole blocks: of those pagetier leaves the last one to the engine
SHARES = (0, 50, 90)
REQUESTS, TOKENS, ANSWER = 16, 10 * BLOCK, 8

Round = dict[str, dict[str, float]]
"""What was measured, by whom, and the seconds it took."""
Taken = Mapping[str, list[float]]
"""Who, and the seconds of each round."""
Times = dict[str, dict[str, list[float]]]
"""The same for all that is measured."""


def measure(rounds: int, minutes: float) -> Iterator[Result]:
    """With so many pairs of everything, or with as many as there were in time."""
    times: Times = {}
    ends = time.monotonic() + 60 * minutes
    with tempfile.TemporaryDirectory(prefix="pagetier-bench-") as folder, contest(Path(folder)) as engines:
        for told in itertools.islice(_whole_rounds(engines, spare=rounds // 4), 1, rounds + 1):
            for what, who in told.items():
                for name, seconds in who.items():
                    times.setdefault(what, {}).setdefault(name, []).append(seconds)
            if time.monotonic() > ends:
                break
        equal = engines.equal
    yield from _first_tokens(times)
    yield from _rates(times)
    for name, count in equal.items():
        yield Result(f"answers_of_{name}_as_of_vllm", count[True] / count.total(), "of all", f"{count.total()} answers")


def _whole_rounds(engines: Contest, spare: int) -> Iterator[Round]:
    """One after the other. Leaves out those in which a cache had not what it was to have, as long as they are few."""
    while True:
        try:
            yield _round(engines)
        except MissedError as error:
            if not spare:
                raise
            spare -= 1
            print(f"a round is left out: {error}", file=sys.stderr)


def _round(engines: Contest) -> Round:
    return _round_of_lengths(engines) | _round_of_shares(engines)


def _round_of_lengths(engines: Contest) -> Round:
    """The same prompts computed, from memory, and from disk."""
    prompts = {tokens: engines.prompt(tokens) for tokens in LENGTHS}
    told = {f"cold_{tokens}": engines.run([prompt], EVERYONE) for tokens, prompt in prompts.items()}
    engines.forget()
    for tokens, prompt in prompts.items():
        told[f"memory_{tokens}"] = engines.run([prompt], CACHING, tokens // BLOCK * BLOCK)
    engines.forget()
    engines.only_on_disk()
    for tokens, prompt in prompts.items():
        told[f"disk_{tokens}"] = engines.run([prompt], (OURS,), tokens // BLOCK * BLOCK)
    engines.forget()
    engines.scene.wait_until_nothing_is_saved()
    return told


def _round_of_shares(engines: Contest) -> Round:
    """Prompts whose beginnings were in the batch that shared nothing, forgotten by the engine meanwhile."""
    new = [engines.prompt(TOKENS) for _ in range(REQUESTS)]
    told = {}
    for share in SHARES:
        known = TOKENS * share // 100
        prompts = [engines.prompt(TOKENS, prompt[:known]) for prompt in new] if known else new
        told[f"share_{share}"] = engines.run(prompts, EVERYONE, known, ANSWER)
        engines.forget()
    return told


def _first_tokens(times: Times) -> Iterator[Spread]:
    """Of each length and tier."""
    for tokens in LENGTHS:
        cold, memory, disk = (times[f"{tier}_{tokens}"] for tier in ("cold", "memory", "disk"))
        name, computed = f"first_token_{tokens}", {ALONE: cold[ALONE]}
        yield _of_times(f"{name}_cold_pagetier_over_vllm", cold, (OURS, ALONE), NOT_SLOWER)
        yield _of_times(f"{name}_cold_native_over_pagetier", cold, (NATIVE, OURS), AHEAD)
        yield _of_times(f"{name}_memory_native_over_pagetier", memory, (NATIVE, OURS), AHEAD)
        yield _of_times(f"{name}_memory_vllm_over_pagetier", memory | computed, (ALONE, OURS), NO_CLAIM)
        yield _of_times(f"{name}_disk_vllm_over_pagetier", disk | computed, (ALONE, OURS), NO_CLAIM)


def _rates(times: Times) -> Iterator[Spread]:
    """Of each share: the ratio of two rates is that of their times, turned over."""
    for share in SHARES:
        taken, name = times[f"share_{share}"], f"requests_per_second_{share}_percent"
        yield _of_rates(f"{name}_pagetier_over_vllm", taken, (OURS, ALONE), NO_CLAIM if share else NOT_LESS)
        yield _of_rates(f"{name}_pagetier_over_native", taken, (OURS, NATIVE), AHEAD)


def _of_times(name: str, taken: Taken, pair: tuple[str, str], claim: Claim) -> Spread:
    one, other = (taken[who] for who in pair)
    told = "; ".join(f"{who} {1e3 * statistics.median(taken[who]):.1f} ms" for who in EVERYONE if who in taken)
    return spread(name, ratios(one, other), claim, told)


def _of_rates(name: str, taken: Taken, pair: tuple[str, str], claim: Claim) -> Spread:
    one, other = (taken[who] for who in pair)
    told = "; ".join(f"{who} {REQUESTS / statistics.median(taken[who]):.2f}" for who in EVERYONE if who in taken)
    return spread(name, ratios(other, one), claim, f"{told} requests a second")
