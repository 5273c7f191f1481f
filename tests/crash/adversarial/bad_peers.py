"""Adversarial peers of the control socket: `python -m adversarial.bad_peers ACT SOCKET USER`, until it is killed.

A line "begun" on standard output reports that the attack runs. The module imports no client, so that it starts fast.
"""

from __future__ import annotations

import os
import random
import resource
import signal
import socket
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from eventually import PATIENCE_S, pace
from pagetier.shm._core import KEY_BYTES, HintKind, page_requests
from pagetier.shm.daemon_link import Link, LinkError
from pagetier.shm.message_codec import pack
from pagetier.shm.protocol import (
    BUILD,
    REQUEST_LIMIT,
    Attach,
    Check,
    Fetch,
    Flush,
    HintPages,
    Observe,
    Request,
    Reserve,
    Save,
    Space,
)

_SEED: Final = 20261121
_PAUSE_S: Final = 0.001
_MANY: Final = 4000
CROWD: Final = 2000
_WALKERS: Final = 100


def connected(path: Path) -> socket.socket:
    """Returns a connection; retries while the daemon's queue is full."""
    while True:
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        peer.settimeout(0.5)
        try:
            peer.connect(os.fspath(path))
            return peer
        except OSError:
            peer.close()
            pace(_PAUSE_S)


def say(peer: socket.socket, data: bytes) -> None:
    """Sends as much of the data as the daemon accepts."""
    with suppress(OSError):
        peer.sendall(data)


def begun() -> None:
    """Reports once that the attack runs."""
    os.write(1, b"begun\n")


def repeated(act: Callable[[Path, random.Random], None]) -> Callable[[Path], None]:
    """Returns an attack that repeats this one for ever."""

    def work(path: Path) -> None:
        chance = random.Random(_SEED)
        act(path, chance)
        begun()
        while True:
            act(path, chance)

    return work


def garbage(path: Path, chance: random.Random) -> None:
    """Sends random bytes and disconnects."""
    with connected(path) as peer:
        say(peer, chance.randbytes(chance.randrange(1, 2000)))


def half(path: Path, chance: random.Random) -> None:
    """Sends an incomplete greeting and disconnects."""
    whole = pack(Attach(BUILD, 1, "half"))
    with connected(path) as peer:
        say(peer, whole[: chance.randrange(len(whole))])


def huge(path: Path, chance: random.Random) -> None:
    """Announces lengths up to 4 GiB, and sends as much of the message as the daemon accepts."""
    with connected(path) as peer:
        say(peer, struct.pack("<I", chance.choice([1 << 20, 1 << 21, (1 << 26) - 1, (1 << 32) - 1])) + bytes(4 << 20))


def rights(path: Path, chance: random.Random) -> None:
    """Sends descriptors, as many as a message takes: with a greeting, in the middle of one, and with garbage."""
    files = [os.open(name, os.O_RDONLY) for name in ("/dev/null", "/dev/zero", "/proc/self/maps")]
    files += [end.detach() for end in socket.socketpair()]
    whole = pack(Attach(BUILD, 1, "rights"))
    cut = chance.randrange(1, len(whole))
    with connected(path) as peer, suppress(OSError):
        for piece in (whole[:cut], whole[cut:], chance.randbytes(10)):
            socket.send_fds(peer, [piece], chance.choices(files, k=chance.choice([1, 3, 253])))
    for file in files:
        os.close(file)


def silent(path: Path) -> None:
    """Opens as many connections as allowed and sends nothing; opens them again when they are closed."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, _MANY + 100), hard))
    peers: list[socket.socket] = []
    while True:
        peers.append(connected(path))
        if len(peers) == 200:
            begun()
        if len(peers) >= _MANY:
            peers.pop(0).close()


def crowd(path: Path) -> None:
    """Opens 2,000 connections and keeps them: silent, with half a greeting, a whole one, or a length of 4 GiB."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, CROWD + 100), hard))
    greetings = (b"", pack(Attach(BUILD, 1, "crowd"))[:-1], pack(Observe(BUILD)), bytes([255] * 4))
    peers = list[socket.socket]()
    for number in range(CROWD):
        peers.append(connected(path))
        say(peers[-1], greetings[number % len(greetings)])
    begun()
    signal.pause()


def hoarding(path: Path) -> None:
    """Sends all but the last byte of a long greeting over many connections; every other greeting is far too long."""
    peers = list[socket.socket]()
    while True:
        peer = connected(path)
        peer.settimeout(0.2)
        say(peer, pack(Attach(BUILD, 1, "hoard", bytes(8 * (250_000 if len(peers) % 2 else 4_000_000))))[:-1])
        peers.append(peer)
        if len(peers) == 20:
            begun()
        if len(peers) > 100:
            peers.pop(0).close()


def stuffing(path: Path) -> None:
    """Attaches over many connections, and sends all but the last byte of the longest permitted request over each."""
    links = list[Link]()
    while True:
        with suppress(LinkError):
            links.append(Link(path, PATIENCE_S))
            for descriptor in links[-1].greet(Attach(BUILD, 7, "stuff"), PATIENCE_S).descriptors:
                os.close(descriptor)
            links[-1]._socket.settimeout(10.0)
            say(links[-1]._socket, struct.pack("<I", REQUEST_LIMIT) + bytes(REQUEST_LIMIT - 1))
        if len(links) == 20:
            begun()
        if len(links) > 100:
            links.pop(0).close()


def _flood(path: Path, greeting: Attach | Observe, *requests: Request) -> None:
    """Sends requests without end, and reads no response."""
    link = Link(path, PATIENCE_S)
    link.greet(greeting, PATIENCE_S)
    data = b"".join(map(pack, requests))
    peer = link._socket
    peer.settimeout(0.2)
    begun()
    while True:
        with suppress(OSError):
            while True:
                peer.send(data)
        if not _drain(peer, 1 << 16):
            return


def _drain(peer: socket.socket, nbytes: int) -> bool:
    with suppress(OSError):
        return bool(peer.recv(nbytes))
    return True


def asking(path: Path) -> None:
    """Sends the most expensive requests over one connection."""
    space = Space(b"h" * KEY_BYTES, "hostile", 16)
    keys = os.urandom(KEY_BYTES * 1000)
    reserve = Reserve(1, space, 0, 1, page_requests(keys, struct.pack("<Q", 1 << 16) * 1000))
    hint = HintPages(0, os.urandom(KEY_BYTES * 1000), HintKind.KEEP, 1e300)
    _flood(path, Attach(BUILD, 7, "asking"), Check(1), Flush(2, None), reserve, Fetch(3, keys, 1e6), Save(4), hint)


def watching(path: Path) -> None:
    """Does the same as an observer."""
    requests: list[Request] = [Flush(1, None), Check(2)]
    _flood(path, Observe(BUILD), *requests * 500)


def saving(path: Path) -> None:
    """Requests the progress of a save over many connections, for which the daemon walks through all pages."""
    peers = [_watching(path) for _ in range(_WALKERS)]
    begun()
    while True:
        for peer in peers:
            with suppress(OSError):
                peer.send(pack(Save(0)) * 50)
            _drain(peer, 1 << 16)
        pace(_PAUSE_S)


def _watching(path: Path) -> socket.socket:
    link = Link(path, PATIENCE_S)
    for descriptor in link.greet(Observe(BUILD), PATIENCE_S).descriptors:
        os.close(descriptor)
    link._socket.setblocking(False)
    return link._socket


def crowding(path: Path) -> None:
    """Attaches as an observer over as many connections as allowed."""
    links = list[Link]()
    with suppress(LinkError):
        while True:
            links.append(Link(path, PATIENCE_S))
            for descriptor in links[-1].greet(Observe(BUILD), PATIENCE_S).descriptors:
                os.close(descriptor)
    begun()
    signal.pause()


def turned_away(path: Path) -> None:
    """Attaches again and again with another build, which is rejected."""
    count = 0
    while True:
        with suppress(LinkError):
            Link(path, 1.0).greet(Attach("pagetier 0", 1, "old"), 1.0)
        count += 1
        if count == 100:
            begun()


ACTS: Final[dict[str, Callable[[Path], None]]] = {
    "garbage": repeated(garbage),
    "half": repeated(half),
    "huge": repeated(huge),
    "rights": repeated(rights),
    "silent": silent,
    "crowd": crowd,
    "hoarding": hoarding,
    "stuffing": stuffing,
    "asking": asking,
    "watching": watching,
    "saving": saving,
    "crowding": crowding,
    "turned_away": turned_away,
}


def main() -> None:
    """Changes to the user and runs the attack."""
    act, path, user = sys.argv[1:]
    if int(user) != os.geteuid():
        os.setgroups([])
        os.setgid(int(user))
        os.setuid(int(user))
    ACTS[act](Path(path))


if __name__ == "__main__":
    main()
