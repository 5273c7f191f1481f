"""Converts the inputs of a fuzzer between a folder of files and one text.

usage: corpus.py pack FOLDER FILE | unpack FILE FOLDER

In the text an input is a line in hexadecimal: a corpus is one file, and a change of it is a few lines.
"""

import hashlib
import sys
from pathlib import Path

MOST_BYTES = 36_000


def pack(folder: Path, text: Path) -> None:
    """Writes the inputs to a text, the shortest first, up to its maximal length."""
    inputs = sorted((file.read_bytes() for file in folder.iterdir()), key=lambda data: (len(data), data))
    lines: list[str] = []
    for data in inputs:
        if sum(map(len, lines)) + 2 * len(data) < MOST_BYTES:
            lines.append(data.hex() + "\n")
    text.write_text("".join(lines))


def unpack(text: Path, folder: Path) -> None:
    """Writes each input to a file named after its digest. Files that exist stay."""
    folder.mkdir(parents=True, exist_ok=True)
    for line in text.read_text().split() if text.exists() else []:
        data = bytes.fromhex(line)
        (folder / hashlib.sha1(data, usedforsecurity=False).hexdigest()).write_bytes(data)


{"pack": pack, "unpack": unpack}[sys.argv[1]](Path(sys.argv[2]), Path(sys.argv[3]))
