"""`python -m pagetier.daemon.manual FOLDER` writes the manual pages there."""

from __future__ import annotations

import sys
from pathlib import Path

from .pages import manual

folder = Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
for name, text in manual().items():
    (folder / name).write_text(text)
