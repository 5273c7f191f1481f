"""README's table: pagetier beside what a reader would use instead. A ratio above 1 means that pagetier is better."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from race.contestants.registry import FILES, LMCACHE, NATIVE, PAGETIER
from race.documents.sources import Sources
from race.report.cells import number
from race.report.ratios import Verdict, compare
from race.report.systems import VLLM
from race.results import Observed

BETTER = {"low": "lower", "high": "higher"}
HEAD = ["what", "instead", "pagetier", "better is", "ratio"]
MEMORY, COMPUTED, DISK = "from memory", "computed", "from disk"

Cells = list[str]


def comparison(sources: Sources) -> Iterator[Cells]:
    """Yields the rows of the table, with its head."""
    yield HEAD
    yield _instead_of_computing(sources)
    yield _beside(sources, "", NATIVE, "serving", f"first token of 8190 tokens, {MEMORY}")
    yield _beside(sources, "1,030 tokens", NATIVE, "serving", f"first token of 1030 tokens, {MEMORY}")
    yield _beside(sources, "260 tokens", NATIVE, "serving", f"first token of 260 tokens, {MEMORY}")
    yield _beside(sources, "8,190 tokens: disk", LMCACHE, "serving", f"first token of 8190 tokens, {DISK}")
    yield _beside(sources, "8,190 tokens: computed", VLLM, "serving", f"first token of 8190 tokens, {COMPUTED}")
    yield _beside(sources, "tokens a second, nothing cached", VLLM, "serving", "nothing cached, tokens")
    yield _beside(sources, "four engines, first token of later turns", NATIVE, "router", "later turns: first token")
    yield _beside(sources, "", LMCACHE, "router", "later turns: first token")
    yield _beside(sources, "their memory", VLLM, "router", "memory taken from the machine")
    yield _after_restart(sources)
    yield _lookup(sources)
    yield from _beside_hardware(sources)
    yield _beside(sources, "warm read", FILES, "disk", "warm read")
    yield _gpu(sources)


def _beside(sources: Sources, what: str, rival: str, contest: str, case: str) -> Cells:
    one = compare(sources.figures(contest, case), rival)
    ratio = {Verdict.AHEAD: "{}", Verdict.BEHIND: "**{}**", Verdict.OPEN: "{}, level"}[one.verdict]
    theirs, ours = (_short(sources.median(contest, case, system)) for system in (rival, PAGETIER))
    return _row(what, rival, theirs, ours, one.figures.best, ratio.format(number(one.value)))


def _short(value: str) -> str:
    return value.removesuffix(" tokens a second").replace(" x O_DIRECT", " x")


def _row(what: str, rival: str, theirs: str, ours: str, best: str, ratio: str) -> Cells:
    return [what, f"{rival}: {theirs}", ours, BETTER[best], ratio]


def _instead_of_computing(sources: Sources) -> Cells:
    computed, found = (sources.figures("serving", f"first token of 8190 tokens, {how}") for how in (COMPUTED, MEMORY))
    alone, ours = statistics.median(computed.rounds[VLLM]), statistics.median(found.rounds[PAGETIER])
    what = "first token, 8,190 tokens: memory"
    return _row(what, VLLM, f"{number(alone)} ms", f"{number(ours)} ms", "low", number(alone / ours))


def _after_restart(sources: Sources) -> Cells:
    """Returns how many of the pages that were asked were right after the server was killed and restarted."""
    seen = [line.observation for line in sources.race.lines if isinstance(line, Observed)]
    served = {one.system: one.served for one in seen if one.failure == "server_restarted"}
    theirs, ours = served[LMCACHE], served[PAGETIER]
    return _row(
        "server killed and restarted: pages served",
        LMCACHE,
        f"{theirs.right} of {theirs.right + theirs.missed}",
        f"{ours.right} of {ours.right + ours.missed}",
        "high",
        "",
    )


def _lookup(sources: Sources) -> Cells:
    return _beside(
        sources, "lookup of 131,072 tokens", LMCACHE, "lookup", "from tokens, pages of 16 tokens, hit, 1 process"
    )


def _beside_hardware(sources: Sources) -> Iterator[Cells]:
    """Yields copies over memcpy and reads over O_DIRECT, in small and in huge pages."""
    copies = sources.tables["copies"]
    for call in ("store", "load"):
        (one, one_huge), (eight, eight_huge) = (copies.row(f"{call} of {pages}").values for pages in ("one", "eight"))
        ratios = _pages(_marks(one, eight), _marks(one_huge, eight_huge))
        yield [f"{call} of one; eight pages of 8 MiB", "memcpy", "", "higher", ratios]
    small = sources.tables["disk in small pages"].row("cold read").values[0]
    huge = statistics.median(sources.figures("disk", "cold read").rounds[PAGETIER])
    yield ["cold read from disk", "O_DIRECT", "", "higher", _pages(_marks(small), _marks(huge))]


def _pages(small: str, huge: str) -> str:
    return f"{small}, huge pages: {huge}"


def _marks(*ratios: float | None) -> str:
    """Returns ratios, in bold where pagetier is slower."""
    return "; ".join(f"**{ratio:.2f}**" if ratio < 1 else f"{ratio:.2f}" for ratio in ratios if ratio is not None)


def _gpu(sources: Sources) -> Cells:
    computed, loaded = map(sources.gpu, ("ttft_computed", "ttft_loaded_layer_by_layer_graphs_on"))
    ratio = f"{computed / loaded:.1f}"
    return _row("32,896 tokens on a GPU", "computing", f"{number(computed)} ms", f"{number(loaded)} ms", "low", ratio)
