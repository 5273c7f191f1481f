"""Makes the replacements of one mutant in the files of a folder, or fails.

usage: mutate.py MUTANTS FOLDER [NAME]

In the text MUTANTS a mutant begins with [NAME] and a sentence. Then come its replacements: the name of a file, and its
lines, which begin with "-" (old), "+" (new) or a space (both). Without NAME, MUTANTS is one unified diff.

The old lines must be found word for word and exactly once: a mutant that no longer fits the code must be rewritten, not
guessed at. Failpoints (core/common/failpoints.h) are removed first, because they compile to nothing here.
"""

import re
import sys
from pathlib import Path

FILE = re.compile(r"(?:\+\+\+ \S*?)?(\w+/)*(\w+\.\w+)")


def read_lines(text: str, name: str) -> list[str]:
    """Returns the lines of this mutant. Raises ValueError if there is not exactly one with the name."""
    _, mutant = text.split(f"[{name}]\n")
    return mutant.split("\n[")[0].splitlines()


def replacements(lines: list[str]) -> list[tuple[str, str, str]]:
    """Returns file name, old text and new text of each replacement."""
    found: list[tuple[str, str, str]] = []
    for line in lines:
        if file := FILE.fullmatch(line):
            found.append((file[2], "", ""))
        elif found and line.startswith("@@"):
            found.append((found[-1][0], "", ""))
        elif found and line and not line.startswith("--- "):
            name, old, new = found[-1]
            kept = line[1:] + "\n"
            found[-1] = name, old + kept * (line[0] in " -"), new + kept * (line[0] in " +")
    return [one for one in found if one[1] or one[2]]


def without_points(text: str) -> str:
    """Returns the text without failpoints: each of them is a line of its own."""
    return re.sub(r'^[ \t]*PT_POINT\("[\w.]+"\);\n', "", text, flags=re.MULTILINE)


def main(mutants: Path, folder: Path, name: str = "") -> None:
    """Makes all replacements, or exits with the one that does not fit."""
    text = mutants.read_text()
    for file, old, new in replacements(read_lines(text, name) if name else text.splitlines()):
        (path,) = folder.rglob(file)
        before = without_points(path.read_text())
        if before.count(old) != 1:
            sys.exit(f"{mutants} {name}: old lines of {file} were found {before.count(old)} times, not once")
        path.write_text(before.replace(old, new))


main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
