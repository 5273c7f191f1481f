"""Who may have a slot: one process leaves room for the others, and all engines for the disk tier's worker."""

from __future__ import annotations

from typing import Any, Final

from pagetier.shm._core import SLOTS
from pagetier.shm.process import Process

MOST_OF_PROCESS: Final = SLOTS // 4


def has_slot(takers: list[dict[str, Any]], process: Process, token: int) -> bool:
    """Whether a session of this process is among the takers."""
    return token in _tokens(takers, process)


def why_no_slot(takers: list[dict[str, Any]], process: Process, token: int, kept: int) -> str:
    """Why a session of this process may not have a slot, or "": it may, or has one already.

    takers: who has one. kept: slots that no engine may have.
    """
    if has_slot(takers, process, token):
        return ""
    if len(_tokens(takers, process)) >= MOST_OF_PROCESS:
        return f"this process has {MOST_OF_PROCESS} slots: one of its sessions has to go first"
    if len(takers) + kept >= SLOTS:
        for_disk = " or kept for the disk tier" if kept else ""
        return f"all {SLOTS} slots are taken{for_disk}: an engine has to go first"
    return ""


def _tokens(takers: list[dict[str, Any]], process: Process) -> list[int]:
    return [t["token"] for t in takers if Process(t["pid"], t["started"]) == process]
