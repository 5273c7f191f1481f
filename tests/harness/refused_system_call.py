"""Lets the kernel refuse one kind of system call of this process, for good (seccomp)."""

from __future__ import annotations

import ctypes
import os
import struct
from typing import Final

MADVISE: Final = {"x86_64": 28, "aarch64": 233}[os.uname().machine]
MADV_DONTFORK: Final = 10
_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _MODE_FILTER = 22, 38, 2
_LOAD, _SKIP_UNLESS_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000
_NUMBER_AT, _ARGUMENTS_AT = 0, 16  # in struct seccomp_data


def refuse_system_call(number: int, argument: int, value: int, error: int) -> None:
    """Lets a system call fail with this error where an argument has this value. Calls of the other ABI are allowed."""
    steps = [
        (_LOAD, 0, 0, _NUMBER_AT),
        (_SKIP_UNLESS_EQUAL, 0, 3, number),
        (_LOAD, 0, 0, _ARGUMENTS_AT + 8 * argument),  # the lower half
        (_SKIP_UNLESS_EQUAL, 0, 1, value),
        (_RETURN, 0, 0, _FAIL | error),
        (_RETURN, 0, 0, _ALLOW),
    ]
    program = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *step) for step in steps))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    header = ctypes.create_string_buffer(struct.pack("<H6xQ", len(steps), ctypes.addressof(program)))
    assert libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, header, 0, 0) == 0, os.strerror(ctypes.get_errno())
