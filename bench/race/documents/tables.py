"""The tables that documents take from results files, by the names that stand before them in the documents.

`PYTHONPATH=bench .venv/bin/python -m race.documents` updates them after a benchmark has run.
"""

from __future__ import annotations

import re
import statistics
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from race.contestants.registry import PAGETIER
from race.documents import gpu
from race.documents.readme import comparison
from race.documents.sources import FIRST_GPU, GPU, Sources, Table

ROOT = Path(__file__).parents[3]
DOCUMENTS = ("README.md", "docs/benchmarks.md", "docs/sizing.md")
MARK = re.compile(r"^<!-- results: ([\w ]+) -->\n(?:(?!\||#|<!--).*\n)*(?:\|.*\n)+", re.MULTILINE)
_LOOKUP = "matched_131072_first_native_over_pagetier"
QUESTIONS = {
    "s3_question_of_1": "question for one page, SeaweedFS",
    "mooncake_question_of_1": "question for one page, Mooncake",
    "mooncake_question_of_256": "question for 256 pages, Mooncake; ours with the sizes",
    "match_p99_beside_a_stopped_store": "p99 of `match` beside an engine whose fleet's store is stopped, over idle",
}
ROW_FAMILIES = {
    "dsa": "DSA, bfloat16",
    "dsa_fp8": "DSA, FP8",
    "deepseek_v4": "DeepSeek V4, tokens",
    "deepseek_v4_ends": "DeepSeek V4, ends",
}
MATCHED = {"other": "one prompt each", "same": "the same prompt", "held": "the same, which each has pinned already"}
_SHARED = "requests_per_second_{}_percent_pagetier_over_native"

Cells = Sequence[str]


class Section(msgspec.Struct, frozen=True):
    """A table and the sentence before it, which says how it was measured."""

    caption: str
    rows: Sequence[Cells]


def written(page: str, sources: Sources) -> str:
    """Returns a document with all of its tables made from the results."""
    return MARK.sub(lambda found: f"<!-- results: {found[1]} -->\n\n{_text(SECTIONS[found[1]](sources))}", page)


def _text(section: Section) -> str:
    head, *rows = section.rows
    line = ["--", *(["-:"] * (len(head) - 1))]
    table = "".join(f"| {' | '.join(cells)} |\n" for cells in (head, line, *rows))
    caption = textwrap.fill(section.caption, 100, break_long_words=False, break_on_hyphens=False)
    return f"{caption}\n\n{table}"


def _measured(table: Table) -> Section:
    """Returns a table of from-documents.json."""
    rows = [[row.what, *map(row.cell, range(len(table.columns))), row.goal] for row in table.rows]
    return Section(f"`{table.program}`; {table.machine}; {table.date}.", [["what", *table.columns, "goal"], *rows])


def _kept(name: str) -> Callable[[Sources], Section]:
    return lambda sources: _measured(sources.tables[name])


def _readme(sources: Sources) -> Section:
    race, copies = sources.race_caption(), sources.tables["copies"].date
    caption = f"{race}, copies {copies}; the last row: an NVIDIA H200, {GPU[12:22]}."
    return Section(caption, list(comparison(sources)))


def _fleet(sources: Sources) -> Section:
    record = sources.record("fleet")
    by_name = {row["name"]: row for row in record["results"]}
    rows = [_fleet_row(by_name, *kind) for kind in _fleet_kinds()]
    head = ["ratio (MB/s of pagetier / of the client)", "2 MiB", "8 MiB", "32 MiB", "goal"]
    return Section(f"`bench/results/fleet.json`; {record['device']}; {record['date']}.", [head, *rows])


def _fleet_kinds() -> Iterator[tuple[str, str, str]]:
    for store, title in (("s3", "SeaweedFS"), ("mooncake", "Mooncake")):
        for key, end in (("plain", ""), ("key", ", with a key")):
            yield from ((f"{store}_{key}_{call}", f"{title}, {call}{end}", key) for call in ("get", "put"))


def _fleet_row(by_name: dict[str, dict[str, object]], name: str, title: str, key: str) -> Cells:
    cells = [_fleet_cell(by_name[f"{name}_{size}_mib"]) for size in (2, 8, 32)]
    return [title, *cells, str(by_name[f"{name}_2_mib"]["goal"]).removeprefix(">= ")]


def _fleet_cell(result: dict[str, object]) -> str:
    client, ours = re.findall(r"([\d,]+) MB/s", str(result["against"]))
    ratio = f"{result['value']:.2f}"
    return f"{ratio if result['met'] else f'**{ratio}**'} ({ours} / {client})"


def _questions(sources: Sources) -> Section:
    record = sources.record("fleet")
    by_name = {row["name"]: row for row in record["results"]}
    rows = [[what, *_question(by_name[name])] for name, what in QUESTIONS.items()]
    caption = f"`bench/results/fleet.json`, {record['date']}."
    return Section(caption, [["what", "ratio", "goal", "medians"], *rows])


def _question(result: dict[str, object]) -> Cells:
    missed = "" if result["met"] else ", **missed**"
    return [f"{result['value']:.2f}{missed}", str(result["goal"]).removeprefix("<= "), str(result["against"])]


def _gpu_copies(sources: Sources) -> Section:
    return Section(f"`make gpu`; NVIDIA H200; {FIRST_GPU[12:22]}.", list(gpu.copies(sources)))


def _gpu_launches(sources: Sources) -> Section:
    return Section(f"Stores on an NVIDIA H200, {FIRST_GPU[12:22]}.", list(gpu.launches(sources)))


def _vllm(sources: Sources) -> Section:
    record = sources.record("engines-vllm-0.32")
    by_name = {row["name"]: row for row in record["results"]}
    named = [("lookup of 131,072 cached tokens in blocks of 16 by the connector", _LOOKUP)]
    named += [(f"requests a second, {share} % of a prompt shared", _SHARED.format(share)) for share in (50, 90)]
    rows = [[what, *_ratio(by_name[name]), str(by_name[name]["pairs"])] for what, name in named]
    head = ["native offloading beside pagetier", "ratio (95 % interval)", "medians", "pairs"]
    return Section(f"`bench/results/engines-vllm-0.32.json`; {record['device']}; {record['date']}.", [head, *rows])


def _slowed_disk(sources: Sources) -> Section:
    record = sources.record("slowed-disk-vllm-0.32")
    rows = [_slowed(result) for result in record["results"]]
    head = ["loading takes, times computing", "over the better (95 % interval)", "goal", "medians"]
    busy = max(float(result["load_average"]) for result in record["results"])
    caption = f"`bench/results/slowed-disk-vllm-0.32.json`; {record['device']}, load {busy:.0f}; {record['date']}."
    return Section(caption, [head, *rows])


def _slowed(result: dict[str, object]) -> Cells:
    ratio, against = _ratio(result)
    missed = "" if result["met"] else ", **missed**"
    times = str(result["name"]).removeprefix("loading_").removesuffix("_x")
    return [f"{times} x", ratio, str(result["goal"]).removeprefix("<= ") + missed, against]


def _ratio(result: dict[str, object]) -> Cells:
    value, low, high = (f"{result[key]:.3g}" for key in ("value", "low", "high"))
    return [f"{value} x ({low} to {high})", str(result["against"])]


def _row_copies(sources: Sources) -> Section:
    record = sources.record("row-copies")
    by_name = {row["name"]: row for row in record["results"]}
    rows = [[title, *_rows_of(by_name, name)] for name, title in ROW_FAMILIES.items()]
    head = ["processor time", "match", "store", "load", "store over MLA", "load over MLA", "K and V over MLA"]
    return Section(f"`bench/row_copies.py`; {record['device']}; {record['date']}.", [head, *rows])


def _rows_of(by_name: dict[str, dict[str, object]], name: str) -> Iterator[str]:
    for call in ("match", "store", "load"):
        result = by_name[f"{call}_{name}_rows_over_attention"]
        yield f"{result['value']:.2f} x" if result["met"] else f"**{result['value']:.2f} x**"
    for call in ("store", "load"):
        yield f"{by_name[f'{call}_{name}_rows_over_mla']['value']:.2f} x"
    yield " and ".join(f"{by_name[f'{call}_{name}_attention_over_mla']['value']:.2f}" for call in ("store", "load"))


def _shared_matches(sources: Sources) -> Section:
    record = sources.record("shared-matches")
    by_name = {row["name"]: row for row in record["results"]}
    rows = [[title, *_matched(by_name, what)] for what, title in MATCHED.items()]
    head = ["two processes over one", "8 pages", "512 pages", "8 pages, no work", "512 pages, no work"]
    return Section(f"`bench/shared_matches.py`; {record['device']}; {record['date']}.", [head, *rows])


def _matched(by_name: dict[str, dict[str, object]], what: str) -> Iterator[str]:
    for end in ("", "_without_work"):
        for pages in (8, 512):
            result = by_name[f"match_{pages}_{what}_2_processes_over_1{end}"]
            yield f"**{result['value']:.2f} x**" if result["met"] is False else f"{result['value']:.2f} x"


def _huge_pages(sources: Sources) -> Section:
    index, copies, host = (sources.tables[name] for name in ("index", "copies", "large host"))
    rows = [*_both(copies, "store of one", "load of one", "store of eight"), *_reads(sources)]
    rows += [*_both(index, "a new daemon", "a cached prompt"), *_both(host, "a new daemon", "a random")]
    rows.append(["page tables of a process for 2 TiB of arena (computed)", "4 GiB", "8 MiB"])
    dates = f"copies {copies.date}, reads {sources.race_caption().split('; ')[1]}, the index {index.date}"
    return Section(f"What they are worth ({index.machine}; {dates}):", [["what", *copies.columns], *rows])


def _both(table: Table, *begins: str) -> Iterator[Cells]:
    yield from ([(row := table.row(begin)).what, row.cell(0), row.cell(1)] for begin in begins)


def _reads(sources: Sources) -> Iterator[Cells]:
    """Yields the reads of the race's disk contest, over O_DIRECT."""
    for read in ("cold read", "warm read"):
        small = sources.tables["disk in small pages"].row(read).cell(0)
        huge = statistics.median(sources.figures("disk", read).rounds[PAGETIER])
        yield [f"{read} of [the race](race.md#disk), over O_DIRECT", small, f"{huge:.2f} x"]


SECTIONS: dict[str, Callable[[Sources], Section]] = {
    "readme": _readme,
    "index": _kept("index"),
    "copies": _kept("copies"),
    "row copies": _row_copies,
    "shared matches": _shared_matches,
    "disk": _kept("disk"),
    "fleet": _fleet,
    "questions": _questions,
    "gpu copies": _gpu_copies,
    "gpu launches": _gpu_launches,
    "service": _kept("service"),
    "vllm": _vllm,
    "slowed disk": _slowed_disk,
    "huge pages": _huge_pages,
}
