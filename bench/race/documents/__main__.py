"""`python -m race.documents` writes the tables of README and docs that are made from results files."""

from __future__ import annotations

from race.documents.sources import Sources
from race.documents.tables import DOCUMENTS, ROOT, written


def main() -> None:
    sources = Sources()
    for path in (ROOT / name for name in DOCUMENTS):
        path.write_text(written(path.read_text(), sources))


if __name__ == "__main__":
    main()
