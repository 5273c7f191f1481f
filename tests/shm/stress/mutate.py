"""Applies a unified diff to the files of a folder, by their base names, or fails.

usage: mutate.py PATCH FOLDER

It needs no patch(1), which a machine that builds pagetier may lack. Every hunk must be found word for word and exactly
once: a mutant that no longer fits the core must be rewritten, not guessed at. Failpoints (core/common/failpoints.h) are
removed first, because they compile to nothing here.
"""

import re
import sys
from pathlib import Path


def hunks(diff: str) -> list[tuple[str, str, str]]:
    """Returns file name, text before and text after of each hunk."""
    found: list[tuple[str, str, str]] = []
    for part in re.split(r"^--- ", diff, flags=re.MULTILINE)[1:]:
        name = Path(part.splitlines()[1].removeprefix("+++ ").split()[0]).name
        for body in re.split(r"^@@.*\n", part, flags=re.MULTILINE)[1:]:
            lines = body.splitlines(keepends=True)
            before = "".join(line[1:] for line in lines if line[0] in " -")
            after = "".join(line[1:] for line in lines if line[0] in " +")
            found.append((name, before, after))
    return found


def without_points(text: str) -> str:
    """Returns the text without failpoints: each of them is a line of its own."""
    return re.sub(r'^[ \t]*PT_POINT\("[\w.]+"\);\n', "", text, flags=re.MULTILINE)


def main(patch: Path, folder: Path) -> None:
    """Applies all hunks, or exits with the hunk that does not fit."""
    for name, before, after in hunks(patch.read_text()):
        (path,) = folder.rglob(name)
        text = without_points(path.read_text())
        if text.count(before) != 1:
            sys.exit(
                f"{patch}: a hunk for {name} was found {text.count(before)} times, not once: the patch does not apply"
            )
        path.write_text(text.replace(before, after))


main(Path(sys.argv[1]), Path(sys.argv[2]))
