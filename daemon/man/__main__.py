"""`python -m pagetier.daemon.man FOLDER` writes the manual pages and the generated pages there."""

from __future__ import annotations

import sys
from pathlib import Path

from pagetier.daemon.man.content import documents

folder = Path(sys.argv[1])
(folder / "man").mkdir(parents=True, exist_ok=True)
for name, text in documents().items():
    (folder / name).write_text(text)
