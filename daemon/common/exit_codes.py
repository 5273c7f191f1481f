"""What the daemon and the command line tell by their exit codes. Light: imported for `--help`."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """Exit codes of `pagetierd` and `pagetier`."""

    OK = 0
    WRONG = 1
    USAGE = 2
    UNREACHABLE = 3
    REFUSED = 4
    UNFIT = 5

    @property
    def meaning(self) -> str:
        """In a few words, for help texts."""
        return _MEANINGS[self]


_MEANINGS = {
    Exit.OK: "done",
    Exit.WRONG: "something is wrong: it is said what",
    Exit.USAGE: "used wrongly, or a configuration that can not be used",
    Exit.UNREACHABLE: "the daemon can not be reached",
    Exit.REFUSED: "the daemon refused to start",
    Exit.UNFIT: "the daemon refused to start: it can not use what an earlier one left in memory",
}


def exit_code_help(*codes: Exit) -> str:
    """A paragraph for the end of a help text, about these codes or all; its first line keeps click from joining it."""
    return "\b\nExit codes:\n" + "\n".join(f"  {code.value}  {code.meaning}" for code in codes or Exit)
