"""corpus.py pack FOLDER FILE | unpack FILE FOLDER: inputs of a fuzzer, as a folder of files and as one text.

In the text an input is a line, in hexadecimal: a corpus is one file to look at, and a change of it is a few lines.
"""

import hashlib
import sys
from pathlib import Path

MOST_BYTES = 36_000


def pack(folder: Path, text: Path) -> None:
    """The shortest first, as many as there is room for."""
    inputs = sorted((file.read_bytes() for file in folder.iterdir()), key=lambda data: (len(data), data))
    lines: list[str] = []
    for data in inputs:
        if sum(map(len, lines)) + 2 * len(data) < MOST_BYTES:
            lines.append(data.hex() + "\n")
    text.write_text("".join(lines))


def unpack(text: Path, folder: Path) -> None:
    """Each under a name of its own; what is there already stays."""
    folder.mkdir(parents=True, exist_ok=True)
    for line in text.read_text().split() if text.exists() else []:
        data = bytes.fromhex(line)
        (folder / hashlib.sha1(data, usedforsecurity=False).hexdigest()).write_bytes(data)


{"pack": pack, "unpack": unpack}[sys.argv[1]](Path(sys.argv[2]), Path(sys.argv[3]))
