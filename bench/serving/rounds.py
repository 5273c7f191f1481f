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

LENGTHS = (260, 1030, 4100, 8190)  # none of them whole blocks: of those pagetier leaves the last one to the engine
SHARES = (0, 50, 90)
REQUESTS, TOKENS, ANSWER = 16, 10 * BLOCK, 8
AGAIN = 5  # what is short is measured so many times in a round: one glitch of the machine is longer than it
MORE = 2  # times that those with a cache are given other ends of the same prompts

Round = Iterator[tuple[str, dict[str, float]]]
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
            for what, who in told:
                for name, seconds in who.items():
                    times.setdefault(what, {}).setdefault(name, []).append(seconds)
            if time.monotonic() > ends:
                break
        equal = engines.equal
    yield from _first_tokens(times)
    yield from _rates(times)
    for name, count in equal.items():
        yield Result(f"answers_of_{name}_as_of_vllm", count[True] / count.total(), "of all", f"{count.total()} answers")


def _whole_rounds(engines: Contest, spare: int) -> Iterator[list[tuple[str, dict[str, float]]]]:
    """One after the other. Leaves out those in which a cache had not what it was to have, as long as they are few."""
    while True:
        try:
            yield [*_round_of_lengths(engines), *_round_of_shares(engines)]
        except MissedError as error:
            if not spare:
                raise
            spare -= 1
            print(f"a round is left out: {error}", file=sys.stderr)


def _round_of_lengths(engines: Contest) -> Round:
    """The same prompts computed, from memory, and from disk."""
    prompts = {tokens: engines.prompt(tokens) for tokens in LENGTHS}
    for tokens, prompt in prompts.items():
        yield f"cold_{tokens}", engines.run([prompt], EVERYONE)
    engines.forget()
    for _ in range(AGAIN):
        for tokens, prompt in prompts.items():
            yield f"memory_{tokens}", engines.run([prompt], CACHING, tokens // BLOCK * BLOCK)
        engines.forget()
    engines.only_on_disk()
    for tokens, prompt in prompts.items():
        yield f"disk_{tokens}", engines.run([prompt], (OURS,), tokens // BLOCK * BLOCK)
    engines.forget()
    engines.scene.wait_until_nothing_is_saved()


def _round_of_shares(engines: Contest) -> Round:
    """Prompts whose beginnings were in the batch that shared nothing, forgotten by the engine meanwhile."""
    new = [engines.prompt(TOKENS) for _ in range(REQUESTS)]
    for share in SHARES:
        for names in (EVERYONE, *(CACHING,) * MORE) if share else (EVERYONE,):
            known = TOKENS * share // 100
            prompts = [engines.prompt(TOKENS, prompt[:known]) for prompt in new] if known else new
            yield f"share_{share}", engines.run(prompts, names, known, ANSWER)
            engines.forget()


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
    one, other = _of_both(taken, pair)
    told = "; ".join(f"{who} {1e3 * statistics.median(taken[who]):.1f} ms" for who in EVERYONE if who in taken)
    return spread(name, ratios(one, other), claim, told)


def _of_rates(name: str, taken: Taken, pair: tuple[str, str], claim: Claim) -> Spread:
    one, other = _of_both(taken, pair)
    told = "; ".join(f"{who} {REQUESTS / statistics.median(taken[who]):.2f}" for who in EVERYONE if who in taken)
    return spread(name, ratios(other, one), claim, f"{told} requests a second")


def _of_both(taken: Taken, pair: tuple[str, str]) -> list[list[float]]:
    """What is measured once a round goes with the first of a round."""
    counts = [len(taken[who]) for who in pair]
    return [taken[who][:: count // min(counts)] for who, count in zip(pair, counts, strict=True)]
