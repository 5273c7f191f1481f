"""The tables of what was measured on a GPU."""

from __future__ import annotations

from collections.abc import Iterator

from race.documents.sources import FIRST_GPU, Sources

RUNS = {"16 KiB": "16kib", "256 KiB": "256kib", "2 MiB": "2048kib"}
"""Sizes of runs of bytes, and what the results call them."""
LAUNCHES = {
    "16 x 16 KiB, as in the first run": [16, 1024, 8],
    "16 x 4 KiB, as in the second run": [16, 256, 2],
    "12 x 4 KiB": [12, 256, 2],
    "8 x 8 KiB": [8, 512, 4],
    "4 x 16 KiB": [4, 1024, 8],
    "**4 x 32 KiB, now**": [4, 2048, 8],
}
"""Shapes of launches, and what the results call them."""

Cells = list[str]


def copies(sources: Sources) -> Iterator[Cells]:
    """Yields copies over a plain one, in the first run."""
    yield ["run of bytes", "store", "goal", "load", "goal"]
    for title, name in RUNS.items():
        yield [
            title,
            *_copy(sources, f"store_chosen_{name}_over_plain"),
            *_copy(sources, f"load_chosen_{name}_over_plain"),
        ]


def _copy(sources: Sources, name: str) -> Cells:
    line = sources.gpu_line(name, FIRST_GPU)
    missed = "" if line["verdict"] == "goal met" else ", **missed**"
    return [f"{line['value']:.2f}{missed}", str(line["goal"]).removeprefix(">= ")]


def launches(sources: Sources) -> Iterator[Cells]:
    """Yields what the shapes of launches reach and cost."""
    yield ["programs x bytes in flight", "GB/s", "decoding step", "matrix product"]
    for title, grid in LAUNCHES.items():
        line = sources.launch(grid)
        yield [title, f"{line['gbps']:.1f}", *(f"+{line[what]:.0f} %" for what in ("decode", "gemm"))]
