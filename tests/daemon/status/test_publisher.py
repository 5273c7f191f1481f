"""Tests when the publisher writes the status: with each report that is news, and with no other."""

from __future__ import annotations

from typing import cast

from pagetier.daemon.status.daemon_status import DaemonStatus, unpack
from pagetier.daemon.status.disk_report import DiskReport
from pagetier.daemon.status.hint_report import HintReport
from pagetier.daemon.status.phase import Phase, PhaseProgress
from pagetier.daemon.status.publisher import StatusPublisher
from pagetier.shm._core import Owner


class RecordingOwner:
    """Keeps the texts that were published."""

    def __init__(self) -> None:
        self.texts: list[bytes] = []

    def publish_status(self, text: bytes) -> None:
        self.texts.append(text)


def test_a_report_is_published_with_all_others_and_only_if_it_is_news() -> None:
    owner = RecordingOwner()
    publisher = StatusPublisher(cast(Owner, owner))
    serving, disk, hints = PhaseProgress(Phase.SERVING), DiskReport(folder="/x"), HintReport(pages=1)
    for _ in range(2):
        publisher.note_progress(serving)
        publisher.note_disk(disk)
        publisher.note_hints(hints)
    assert [unpack(text) for text in owner.texts] == [
        DaemonStatus(progress=serving),
        DaemonStatus(progress=serving, disk=disk),
        DaemonStatus(progress=serving, disk=disk, hints=hints),
    ]
    assert publisher.status == unpack(owner.texts[-1])
