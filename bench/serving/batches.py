"""The measurements of vLLM in turns: the time to the first token, and requests per second."""

from __future__ import annotations

import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from measure import Result
from serving.compare import ALONE, CACHING, EVERYONE, NATIVE, OURS, Contest, MissedError, contest
from serving.confidence import AHEAD, NO_CLAIM, NOT_LESS, NOT_SLOWER, Claim, Spread, ratios, spread
from serving.engine import BLOCK

LENGTHS = (
    260,
    1030,
    4100,
    8190,
)  # none is a multiple of a block: of those pagetier leaves the last block to the engine
SHARES = (0, 50, 90)
REQUESTS, TOKENS, ANSWER = 16, 10 * BLOCK, 8
AGAIN = 5  # repetitions of short measurements in a round: one glitch of the machine is longer than they are
MORE = 2  # how often engines with a cache get other ends of the same prompts

Round = Iterator[tuple[str, dict[str, float]]]
"""The measurement, the engine, and the seconds it took."""
Taken = Mapping[str, list[float]]
"""The engine, and the seconds of each round."""
Times = dict[str, dict[str, list[float]]]
"""The same for all measurements."""


def measure(rounds: int, minutes: float) -> Iterator[Result]:
    """Yields the results of `rounds` pairs of each measurement, or of as many as the time allowed."""
    times: Times = {}
    ends = time.monotonic() + 60 * minutes
    with tempfile.TemporaryDirectory(prefix="pagetier-bench-") as folder, contest(Path(folder)) as engines:
        for measured in itertools.islice(_whole_rounds(engines, spare=rounds // 4), 1, rounds + 1):
            for what, who in measured:
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
    """Yields valid rounds. Skips a few rounds in which a cache did not have what it should."""
    while True:
        try:
            yield [*_round_of_lengths(engines), *_round_of_shares(engines)]
        except MissedError as error:
            if not spare:
                raise
            spare -= 1
            print(f"skipping a round: {error}", file=sys.stderr)


def _round_of_lengths(engines: Contest) -> Round:
    """Runs the same prompts computed, from memory, and from disk."""
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
    """Runs prompts whose beginnings were in the batch that shared nothing, and that the engine has forgotten."""
    new = [engines.prompt(TOKENS) for _ in range(REQUESTS)]
    for share in SHARES:
        for names in (EVERYONE, *(CACHING,) * MORE) if share else (EVERYONE,):
            known = TOKENS * share // 100
            prompts = [engines.prompt(TOKENS, prompt[:known]) for prompt in new] if known else new
            yield f"share_{share}", engines.run(prompts, names, known, ANSWER)
            engines.forget()


def _first_tokens(times: Times) -> Iterator[Spread]:
    """Yields the results of each length and tier."""
    for tokens in LENGTHS:
        cold, memory, disk = (times[f"{tier}_{tokens}"] for tier in ("cold", "memory", "disk"))
        name, computed = f"first_token_{tokens}", {ALONE: cold[ALONE]}
        yield _of_times(f"{name}_cold_pagetier_over_vllm", cold, (OURS, ALONE), NOT_SLOWER)
        yield _of_times(f"{name}_cold_native_over_pagetier", cold, (NATIVE, OURS), AHEAD)
        yield _of_times(f"{name}_memory_native_over_pagetier", memory, (NATIVE, OURS), AHEAD)
        yield _of_times(f"{name}_memory_vllm_over_pagetier", memory | computed, (ALONE, OURS), NO_CLAIM)
        yield _of_times(f"{name}_disk_vllm_over_pagetier", disk | computed, (ALONE, OURS), NO_CLAIM)


def _rates(times: Times) -> Iterator[Spread]:
    """Yields the results of each share: a ratio of rates is the inverse ratio of their times."""
    for share in SHARES:
        taken, name = times[f"share_{share}"], f"requests_per_second_{share}_percent"
        yield _of_rates(f"{name}_pagetier_over_vllm", taken, (OURS, ALONE), NO_CLAIM if share else NOT_LESS)
        yield _of_rates(f"{name}_pagetier_over_native", taken, (OURS, NATIVE), AHEAD)


def _of_times(name: str, taken: Taken, pair: tuple[str, str], claim: Claim) -> Spread:
    one, other = _of_both(taken, pair)
    medians = "; ".join(f"{who} {1e3 * statistics.median(taken[who]):.1f} ms" for who in EVERYONE if who in taken)
    return spread(name, ratios(one, other), claim, medians)


def _of_rates(name: str, taken: Taken, pair: tuple[str, str], claim: Claim) -> Spread:
    one, other = _of_both(taken, pair)
    medians = "; ".join(f"{who} {REQUESTS / statistics.median(taken[who]):.2f}" for who in EVERYONE if who in taken)
    return spread(name, ratios(other, one), claim, f"{medians} requests a second")


def _of_both(taken: Taken, pair: tuple[str, str]) -> list[list[float]]:
    """Pairs a measurement that is made once a round with the first one of the round."""
    counts = [len(taken[who]) for who in pair]
    return [taken[who][:: count // min(counts)] for who, count in zip(pair, counts, strict=True)]
