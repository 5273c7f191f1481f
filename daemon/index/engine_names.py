"""Names attached processes in log lines and statistics, also those that this daemon's PID namespace does not show."""

from __future__ import annotations

from pagetier.shm._core import AttachmentRecord, Owner


class EngineNames:
    """Names a process by its PID if that is its PID where this daemon runs, else by its slot and its user.

    The record of an attachment has the PID that the daemon saw which attached the process first. Where the next daemon
    runs, that number may be another process's, or no one's. On the loop's thread only.
    """

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._unseen: set[int] = set()

    def attached(self, slot: int, pid: int) -> None:
        """Notes that a process has attached, or attached again, which this daemon sees under this PID."""
        recorded = next(one.pid for one in self._owner.attachments() if one.slot == slot)
        self._unseen.discard(slot)
        if recorded != pid:
            self._unseen.add(slot)

    def lost_sight(self, slot: int) -> None:
        """Notes that the recorded PID of an adopted slot does not name its process here."""
        self._unseen.add(slot)

    def freed(self, slot: int) -> None:
        """Notes that the slot belongs to no process."""
        self._unseen.discard(slot)

    @property
    def unseen(self) -> tuple[int, ...]:
        """The slots whose recorded PID does not name their process here."""
        return tuple(sorted(self._unseen))

    def pid_of(self, attachment: AttachmentRecord) -> int:
        """Returns the PID of the process; 0 if it is not known here."""
        return 0 if attachment.slot in self._unseen else attachment.pid

    def of(self, attachment: AttachmentRecord) -> str:
        """Returns words for the process that may begin a sentence."""
        if pid := self.pid_of(attachment):
            return f"process {pid} ({attachment.name})"
        return f"the process in slot {attachment.slot} ({attachment.name} of user {attachment.uid})"
