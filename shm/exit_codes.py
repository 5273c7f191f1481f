"""The exit codes of the daemon and of all commands. Imports little, since `--help` needs it."""

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
        """The meaning in a few words, for help texts."""
        return _MEANINGS[self]


_MEANINGS = {
    Exit.OK: "success",
    Exit.WRONG: "a problem was found or the command failed: the output says which",
    Exit.USAGE: "invalid usage or configuration",
    Exit.UNREACHABLE: "the daemon cannot be reached",
    Exit.REFUSED: "the daemon refused to start",
    Exit.UNFIT: "the daemon refused to start: what an earlier one left is incompatible",
}


def exit_code_help(*codes: Exit) -> str:
    """Returns a paragraph for the end of a help text, about these codes or all.

    Its first line keeps click from joining the lines.
    """
    return "\b\nExit codes:\n" + "\n".join(f"  {code.value}  {code.meaning}" for code in codes or Exit)
