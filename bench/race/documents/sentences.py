"""Sentences of documents that have numbers of results files."""

from __future__ import annotations

from collections.abc import Iterator

from race.documents.gpu import LAUNCHES
from race.documents.sources import FIRST_GPU, Sources
from race.report.cells import number


def sentences(sources: Sources) -> Iterator[tuple[str, str]]:
    """Yields documents and parts of sentences that they must have, with single spaces between words."""
    yield "README.md", _idle(sources)
    yield "README.md", _slows_decoding(sources)
    yield "docs/benchmarks.md", _overlap(sources)
    yield "docs/benchmarks.md", _engine_on_gpu(sources)
    yield "docs/benchmarks.md", _reading_from_a_fleet(sources)
    again = _value(sources, "engines-vllm-0.32", "matched_131072_again_native_over_pagetier")["against"]
    yield "docs/benchmarks.md", f"asked again within 2 s takes {float(str(again).split()[1]):g} µs"


def _idle(sources: Sources) -> str:
    begins = ("private memory", "share of a core", "the same with 25 %")
    memory, share, with_disk = (sources.tables["service"].row(begin).cell(0) for begin in begins)
    return f"An idle daemon takes {memory} and {share} of a core; with a disk of 500 GiB, {with_disk}."


def _slows_decoding(sources: Sources) -> str:
    store = sources.launch([*LAUNCHES.values()][-1])["decode"]
    load = sources.gpu("decoding_slowed_by_loads_graphs_on", FIRST_GPU)
    return f"slow decoding by {store:.0f} to {load:.0f} % (goal: 3)"


def _overlap(sources: Sources) -> str:
    layer, memcpy, first = (
        100 * float(str(_value(sources, "overlap", f"overlap_lost_{name}")["value"]))
        for name in ("by_layer", "beside_memcpy", "all_first")
    )
    return (
        f"loses {layer:.0f} % over no load at all if it waits layer by layer, and {first:.0f} % if it waits for all"
        f" layers first. Of the {layer:.0f} %, {memcpy:.0f} % are lost"
    )


def _engine_on_gpu(sources: Sources) -> str:
    computed = number(sources.gpu("ttft_computed"))
    loads = [
        sources.gpu(f"ttft_loaded_{how}_graphs_{graphs}")
        for how in ("all_at_once", "layer_by_layer")
        for graphs in ("off", "on")
    ]
    return f"32,896 tokens take {computed} ms to compute and {min(loads):.0f} to {max(loads):.0f} ms from memory"


def _reading_from_a_fleet(sources: Sources) -> str:
    def seconds(kind: str) -> str:
        names = (f"{kind}_get_{size}_mib_cpu_per_gb" for size in (2, 8, 32))
        return " / ".join(f"{_value(sources, 'fleet', name)['value']:.1f}" for name in names)

    return (
        f"Reading takes {seconds('s3_plain')} s of the worker's CPU time for each GB from SeaweedFS (2 / 8 / 32 MiB),"
        f" and {seconds('mooncake_plain')} s from Mooncake; with a key {seconds('s3_key')} and"
        f" {seconds('mooncake_key')} s."
    )


def _value(sources: Sources, record: str, name: str) -> dict[str, object]:
    results: list[dict[str, object]] = sources.record(record)["results"]
    return next(row for row in results if row["name"] == name)
