"""mutate.py PATCH FOLDER: applies a unified diff to the files of a folder, by their base names, or fails.

A few lines of our own, because a machine that builds pagetier need not have patch(1). Every hunk has to be found
word for word and once: a mutant that no longer fits the core must be written anew, not guessed at. Points at which a
test may kill (core/common/failpoints.h) are nothing here, so they are taken out first.
"""

import re
import sys
from pathlib import Path


def hunks(diff: str) -> list[tuple[str, str, str]]:
    """File name, text before and text after of each hunk."""
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
    """The same code: each point is a line of its own."""
    return re.sub(r'^[ \t]*PT_POINT\("[\w.]+"\);\n', "", text, flags=re.MULTILINE)


def main(patch: Path, folder: Path) -> None:
    """Applies all hunks or exits with what does not fit."""
    for name, before, after in hunks(patch.read_text()):
        (path,) = folder.rglob(name)
        text = without_points(path.read_text())
        if text.count(before) != 1:
            sys.exit(f"{patch}: a hunk for {name} is there {text.count(before)} times: it does not apply any more")
        path.write_text(text.replace(before, after))


main(Path(sys.argv[1]), Path(sys.argv[2]))
