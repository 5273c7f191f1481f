"""Checks what a program can see of the style that CONTRIBUTING.md describes; `make lint` runs it.

Prints one line for each finding and exits with 1 if there are more than the limits below allow.
"""

import ast
import collections
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = ("shm", "tiers", "kernels", "client", "daemon")
TEXT = (
    *(".md", ".py", ".pyi", ".c", ".h", ".pml", ".toml", ".yml", ".yaml", ".json"),
    *(".service", ".conf", ".1", ".5", ".8"),
)
UNCHECKED = ("bench/results/", "CONTRIBUTING.md", ".ci/check_style.py")
LOCKS = "tests/proofs/*.json"  # they quote what programs print, such as the names of mutants

# The C core's folders say who may call: each knows only itself and `common`, which holds for what it includes in turn.
CORE = Path("shm/core")
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"', re.MULTILINE)

# The daemon alone writes the index and removes segments.
DAEMON_ONLY = re.compile(r"\bOwner\b|\bshm\.removal\b|\bshm import .*\bremoval\b")

# Words that hide the subject of a sentence, or stand for a technical term that the glossary has.
WORDS = re.compile(
    r"\bcan not\b|\bsomebody\b|(?<![\x22'=])(?<!user )\bnobody\b|\banew\b|\ball the same\b|\blets? go of\b|\btold\b"
    r"|\bas it is\b|\bwhoever\b"
    r"|\bWho [a-z]+s\b|\b[Hh]e\b|\b[Hh]is\b|\bhim\b|\bpretended\b|\bgrumbl|\bgoes on\b|\bit itself\b|\bstrangers?\b"
    r"|\bmeanwhile\b|\bwants? to know\b|\bno more than that\b"
)
README_LINES, README_WORDS = 150, 1200
MARKDOWN_COLUMNS = 100
C_COLUMNS = 120
MODULE_LINES, FACE_LINES = 300, 500
# Modules that one public name keeps together: what the name can do is read in one file.
PUBLIC_FACES = frozenset({"client/client.py", "client/engines/vllm/connector.py"})


def main() -> int:
    """Prints the findings and returns the exit status."""
    texts = dict(_texts())
    findings = [
        *(*_words(texts), *_readme(texts["README.md"]), *_markdown(texts), *_c_lines(texts), *_includes(texts)),
        *(*_daemon_only(texts), *_modules(texts), *_classes(texts), *_glossary(texts["docs/glossary.md"])),
    ]
    print(*findings, sep="\n", end="\n" if findings else "")
    return 1 if findings else 0


def _texts() -> Iterator[tuple[str, str]]:
    """Yields the path and the content of each text file that git tracks."""
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in tracked.split("\0"):
        path = ROOT / name
        if name.endswith(TEXT) and not path.match(LOCKS) and path.is_file() and not path.is_symlink():
            yield name, path.read_text(errors="replace")


def _lines(texts: dict[str, str], ending: str | tuple[str, ...] = TEXT) -> Iterator[tuple[str, str]]:
    for name, text in texts.items():
        if name.endswith(ending) and not name.startswith(UNCHECKED):
            yield from ((f"{name}:{number}", line) for number, line in enumerate(text.split("\n"), 1))


def _words(texts: dict[str, str]) -> list[str]:
    return [
        f"{place}: use another word than {match.group(0)!r}"
        for place, line in _lines(texts)
        for match in WORDS.finditer(line)
    ]


def _readme(text: str) -> list[str]:
    lines, words = text.count("\n"), len(text.split())
    return [
        f"README.md: {number} {what}, at most {most} fit"
        for number, what, most in ((lines, "lines", README_LINES), (words, "words", README_WORDS))
        if number > most
    ]


def _markdown(texts: dict[str, str]) -> list[str]:
    return [
        f"{place}: wrap at {MARKDOWN_COLUMNS} columns"
        for place, line in _lines(texts, ".md")
        if len(line) > MARKDOWN_COLUMNS and not ("|" in line or "http" in line or line.startswith(("    ", "```")))
    ]


def _c_lines(texts: dict[str, str]) -> list[str]:
    return [
        f"{place}: wrap at {C_COLUMNS} columns" for place, line in _lines(texts, (".c", ".h")) if len(line) > C_COLUMNS
    ]


def _includes(texts: dict[str, str]) -> list[str]:
    return [
        f"{header}: includes {target}, of another folder than common"
        for header in map(Path, texts)
        if header.is_relative_to(CORE)
        for target in INCLUDE.findall(texts[str(header)])
        if not _may_include(header, target)
    ]


def _may_include(header: Path, target: str) -> bool:
    """Returns whether a header of the core may include `target`, which is relative to it."""
    included = Path(os.path.normpath(header.parent / target))
    folder = header.relative_to(CORE).parts[0]
    return included.is_relative_to(CORE / folder) or included.is_relative_to(CORE / "common")


def _product(texts: dict[str, str]) -> Iterator[tuple[str, str]]:
    return ((name, text) for name, text in texts.items() if name.endswith(".py") and name.split("/")[0] in PACKAGES)


def _daemon_only(texts: dict[str, str]) -> list[str]:
    return [
        f"{place}: {match.group(0)!r} is for the daemon"
        for place, line in _lines(dict(_product(texts)))
        if place.startswith(("client/", "kernels/")) and (match := DAEMON_ONLY.search(line))
    ]


def _modules(texts: dict[str, str]) -> list[str]:
    sizes = (
        (name, text.count("\n"), FACE_LINES if name in PUBLIC_FACES else MODULE_LINES) for name, text in _product(texts)
    )
    return [f"{name}: {lines} lines, split it at {most}" for name, lines, most in sizes if lines > most]


def _classes(texts: dict[str, str]) -> list[str]:
    places = collections.defaultdict(list)
    for name, text in _product(texts):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(name)
    twice = {name: where for name, where in places.items() if len(where) > 1}
    return [f"class {name} exists twice: {', '.join(where)}" for name, where in twice.items()]


def _glossary(text: str) -> list[str]:
    """Returns the terms that have more than one row, or a second meaning in their row."""
    rows = [(row[1].split(","), row[2]) for row in (line.split("|") for line in text.split("\n")) if len(row) > 3]
    counts = collections.Counter(term.strip().lower() for terms, _ in rows for term in terms)
    twice = [term for term, count in counts.items() if count > 1 and term.strip("-") not in ("", "term")]
    also = [term.strip() for terms, meaning in rows for term in terms if "also:" in meaning]
    return [f"docs/glossary.md: {term} has two meanings" for term in (*twice, *also)]


if __name__ == "__main__":
    sys.exit(main())
