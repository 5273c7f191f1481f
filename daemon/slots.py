"""Who may have a slot: one process leaves room for the others, and all engines for the disk tier's worker."""

from __future__ import annotations

from typing import Any, Final

from ..shm._core import SLOTS
from ..shm.process import Process

MOST_OF_PROCESS: Final = SLOTS // 4


def why_no_slot(takers: list[dict[str, Any]], process: Process, token: int, kept: int) -> str:
    """Why a session of this process may not have a slot, or "": it may, or has one already.

    takers: who has one. kept: slots that no engine may have.
    """
    tokens = [t["token"] for t in takers if Process(t["pid"], t["started"]) == process]
    if token in tokens:
        return ""
    if len(tokens) >= MOST_OF_PROCESS:
        return f"this process has {MOST_OF_PROCESS} slots: one of its sessions has to go first"
    if len(takers) + kept >= SLOTS:
        for_disk = " or kept for the disk tier" if kept else ""
        return f"all {SLOTS} slots are taken{for_disk}: an engine has to go first"
    return ""
