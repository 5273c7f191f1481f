"""Tests that a worker refuses a daemon of another version before it opens anything, and what makes another version."""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import get_args, get_type_hints

import msgspec
import pytest

from eventually import PATIENCE_S
from pagetier.shm._core import (
    PAGE_TO_FIND_LAYOUT,
    PAGE_TO_READ_LAYOUT,
    PAGE_TO_WRITE_LAYOUT,
    STORED_PAGE_LAYOUT,
)
from pagetier.shm.message_codec import Unpacker
from pagetier.shm.protocol import Space
from pagetier.tiers.base import FleetState, TierState
from pagetier.tiers.worker_protocol import (
    WORKER_BUILD,
    Command,
    FleetOptions,
    OpenFailed,
    Report,
    Stored,
    Trust,
    decode_report,
    other_version,
)

SERVE = ("serve", 1, "/does/not/exist", 1 << 26, 4, False, "files", 0, "off", False)
FLEET = ("servefleet", 1, {"url": "file:///does/not/exist"}, False)


def answer_to(*fields: object) -> tuple[object, int]:
    """Returns what a worker answers to this first message of a daemon, and its exit code."""
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            command = [sys.executable, "-m", "pagetier.tiers.worker", str(theirs.fileno())]
            worker = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        body = msgspec.msgpack.encode(fields)
        ours.sendall(struct.pack("<I", len(body)) + body)
        code = worker.wait(PATIENCE_S)
        (body,) = Unpacker().feed(ours.recv(1 << 16))
    return decode_report(bytes(body)), code


@pytest.mark.parametrize(
    "said",
    [
        (*SERVE, "protocol 0 format 0"),
        (*FLEET, "protocol 99 format 99"),
        SERVE,  # versions before builds
        FLEET,
        ("serve", "a later meaning", 7),
        ("greet", "a later message"),
    ],
    ids=["earlier", "later", "first", "first fleet", "other fields", "other message"],
)
def test_a_daemon_of_another_version_is_refused(said: Sequence[object]) -> None:
    assert answer_to(*said) == (OpenFailed(other_version(WORKER_BUILD)), 4)


def described() -> Iterator[str]:
    """Yields what daemon and worker have to agree on."""
    for layout in (PAGE_TO_FIND_LAYOUT, PAGE_TO_READ_LAYOUT, PAGE_TO_WRITE_LAYOUT, STORED_PAGE_LAYOUT):
        yield f"{layout.size} {[tuple(field) for field in layout.fields]}"
    for kind in (*get_args(Command), *get_args(Report), FleetOptions, FleetState, TierState, Space):
        yield f"{kind.__name__} {get_type_hints(kind)}"
    for numbers in (Stored, Trust):
        yield f"{numbers.__name__} {[(one.name, one.value) for one in numbers]}"


def test_messages_that_changed_have_another_number() -> None:
    """After a change of a message: raise the number in WORKER_BUILD, and put both here."""
    digest = sha256("\n".join(described()).encode()).hexdigest()[:16]
    assert (WORKER_BUILD.partition(" format")[0], digest) == ("protocol 2", "99e5adf0cf4d18a4")
