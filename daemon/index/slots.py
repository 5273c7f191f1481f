"""Grants slots to sessions: at most a quarter of all to one process."""

from __future__ import annotations

from typing import Final

from pagetier.shm._core import SLOTS, AttachmentRecord
from pagetier.shm.process import Process

MOST_SLOTS: Final = SLOTS // 4


def has_slot(attachments: list[AttachmentRecord], process: Process, token: int) -> bool:
    """Returns whether a session of this process has a slot."""
    return token in [one.token for one in sessions_of(attachments, process)]


def why_no_slot(attachments: list[AttachmentRecord], process: Process, token: int, kept: int) -> str:
    """Returns why a session of this process gets no slot; "" if it may have one or has one already.

    Args:
        attachments: The attachments.
        process: The process of the session.
        token: The session.
        kept: The number of slots that no engine may have.
    """
    if has_slot(attachments, process, token):
        return ""
    if len(sessions_of(attachments, process)) >= MOST_SLOTS:
        return f"this process has {MOST_SLOTS} slots: close one of its sessions first"
    if len(attachments) + kept >= SLOTS:
        for_disk = " or reserved for the disk tier" if kept else ""
        return f"all {SLOTS} slots are taken{for_disk}: end an engine first"
    return ""


def sessions_of(attachments: list[AttachmentRecord], process: Process) -> list[AttachmentRecord]:
    """Returns the attachments of a process."""
    return [one for one in attachments if process.same(Process(one.pid, one.started, one.kernel_id))]
