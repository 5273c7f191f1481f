"""What ends a benchmark."""

from __future__ import annotations

from pagetier.shm.exit_codes import Exit


class BenchmarkError(Exception):
    """The benchmark cannot be run, or did not work. The message says why and what to do.

    Args:
        message: The message.
        code: The exit code.
    """

    def __init__(self, message: str, code: int = Exit.WRONG) -> None:
        super().__init__(message)
        self.code = code
