"""Counts the instructions of the core for a store, a match and a copy, in frames of the default size and in fixed ones.

The counts are callgrind's (valgrind) and do not depend on the machine's load, unlike the times of `frame_sizes.py`. A
store and a match are counted without what the client's Python takes, which is the same in all frames.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

from measure import REPORTED, Result, at_most, main
from model_pages import BLOCKS, MODELS, Layout, chosen, fixed
from pagetier.shm import _core

_HERE: Final = Path(__file__).parent
_PROMPT_BYTES: Final = 12 << 20
_PROMPTS: Final = 96  # that the arena has room for
_GOALS: Final = {"store": REPORTED}  # most of a store is in Python and in the copy
_WITHIN: Final = at_most(1.03)
_OPERATION: Final = re.compile(r"Client Request: (\w+)")
_TOTAL: Final = re.compile(r"^totals: (\d+)", re.MULTILINE)

Counts = Counter[str]


def _build(folder: Path) -> Path:
    program, core = folder / "frame_instructions", Path(_core.__file__).parent / "core"
    options = ("-std=gnu11", "-O2", f"-I{core}", "-D_GNU_SOURCE", "-pthread")
    subprocess.run(["gcc", *options, _HERE / "frame_instructions.c", "-lm", "-o", program], check=True)
    return program


def _counted(program: Path, frame_bytes: int, page_bytes: int, pages: int) -> Counts:
    """Returns the instructions of each operation on prompts of so many pages."""
    frames = _PROMPTS * pages * -(-page_bytes // frame_bytes)
    with tempfile.TemporaryDirectory() as folder:
        command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={folder}/out", str(program)]
        sizes = map(str, (frame_bytes, page_bytes, pages, frames))
        subprocess.run([*command, *sizes], check=True, capture_output=True)
        texts = [file.read_text() for file in Path(folder).glob("out.*")]
    named = ((_OPERATION.search(text), _TOTAL.search(text)) for text in texts)
    return Counter({operation[1]: int(total[1]) for operation, total in named if operation and total})


def _of_layout(program: Path, layout: Layout, tokens: int) -> Counts:
    pages = tokens // layout.page_tokens
    counts = Counts()
    for size, groups in Counter(layout.page_bytes).items():
        one = _counted(program, layout.frame_bytes, size, pages)
        counts.update({operation: groups * count for operation, count in one.items()})
    return counts


def _of_case(program: Path, name: str, block: int) -> Iterator[Result]:
    ours = chosen(MODELS[name](block))
    tokens = ours.page_tokens * max(1, _PROMPT_BYTES // sum(ours.page_bytes))
    counts = {layout: _of_layout(program, layout, tokens) for layout in (ours, *fixed(ours))}
    mine = counts.pop(ours)
    for operation, count in mine.items():
        best = min(counts, key=lambda layout: counts[layout][operation])
        other = counts[best][operation]
        case, goal = f"{name}, blocks of {block}: {operation}", _GOALS.get(operation, _WITHIN)
        yield Result(case, count / other, "x", f"{count:,}; {best}: {other:,}", goal)


def measure() -> Iterator[Result]:
    """Counts all cases."""
    if not shutil.which("valgrind"):
        sys.exit("install valgrind")
    with tempfile.TemporaryDirectory() as folder:
        of_case = partial(_of_case, _build(Path(folder)))
        for name in MODELS:
            for block in BLOCKS:
                yield from of_case(name, block)


if __name__ == "__main__":
    main("Instructions in frames of the default size and in fixed ones", measure)
