"""`python -m documents` writes the tables of README and docs that are made from results files."""

from __future__ import annotations

from documents.sources import Sources
from documents.tables import DOCUMENTS, ROOT, written


def main() -> None:
    sources = Sources()
    for path in (ROOT / name for name in DOCUMENTS):
        path.write_text(written(path.read_text(), sources))


if __name__ == "__main__":
    main()
