"""Hosts as network namespaces: a store and hosts around it, each connected to the store by a pair of veth devices."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Iterator

import pytest

_SLOW = ("netem", "delay", "200ms", "loss", "5%")
_STOPPED_S, _RUNS_S = 1.5, 0.02
STORE = "10.77.0.1"
"""The address of the store, which all hosts reach."""


class NetworkNamespace:
    """A network namespace with a loopback device, which a sleeping process keeps."""

    def __init__(self) -> None:
        self._keeper = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", "ip link set lo up && echo ready && exec sleep infinity"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert self._keeper.stdout is not None and self._keeper.stderr is not None
        ready = self._keeper.stdout.readline() == b"ready\n"
        self.trouble = "" if ready else self._keeper.stderr.read().decode().strip()
        self._keeper.stdout.close()
        self._keeper.stderr.close()

    @property
    def pid(self) -> int:
        """The process that keeps it."""
        return self._keeper.pid

    @property
    def enter(self) -> list[str]:
        """Returns the command that runs a command in it."""
        return ["nsenter", f"--net=/proc/{self.pid}/ns/net", "--"]

    def run(self, *command: str) -> None:
        """Runs a command in it. Raises RuntimeError if it fails."""
        done = subprocess.run([*self.enter, *command], capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")

    def close(self) -> None:
        """Ends the keeper: the kernel removes the namespace and its devices after the last process in it."""
        self._keeper.kill()
        self._keeper.wait()


class Network:
    """A store and hosts. The route between a host and the store can be cut."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack
        self.store = self._namespace()
        self.store.run("ip", "address", "add", f"{STORE}/32", "dev", "lo")
        self.hosts: list[NetworkNamespace] = []

    def _namespace(self) -> NetworkNamespace:
        namespace = NetworkNamespace()
        self._stack.callback(namespace.close)
        if namespace.trouble:
            raise RuntimeError(namespace.trouble)
        return namespace

    def address(self, host: int) -> str:
        """Returns the address of a host."""
        return f"10.77.{host + 1}.2"

    def add_host(self) -> NetworkNamespace:
        """Adds a host, connected to the store."""
        number, host = len(self.hosts), self._namespace()
        pair = ["ip", "link", "add", f"host{number}", "type", "veth", "peer", "name", "store", "netns", str(host.pid)]
        self.store.run(*pair)
        self.store.run("ip", "address", "add", f"10.77.{number + 1}.1/30", "dev", f"host{number}")
        self.store.run("ip", "link", "set", f"host{number}", "up")
        host.run("ip", "address", "add", f"{self.address(number)}/30", "dev", "store")
        host.run("ip", "link", "set", "store", "up")
        host.run("ip", "route", "add", "default", "via", f"10.77.{number + 1}.1")
        self.hosts.append(host)
        return host

    @contextlib.contextmanager
    def partitioned(self, host: int) -> Iterator[None]:
        """Cuts the route between a host and the store for the time of a block."""
        self.store.run("ip", "link", "set", f"host{host}", "down")
        try:
            yield
        finally:
            self.store.run("ip", "link", "set", f"host{host}", "up")

    @contextlib.contextmanager
    def slow(self, host: int) -> Iterator[None]:
        """Delays packets to a host by 200 ms and loses one in twenty. Skips the test where the kernel cannot."""
        try:
            self.store.run("tc", "qdisc", "add", "dev", f"host{host}", "root", *_SLOW)
        except (RuntimeError, OSError) as error:
            pytest.skip(f"the kernel cannot delay packets: {error}")
        try:
            yield
        finally:
            self.store.run("tc", "qdisc", "del", "dev", f"host{host}", "root")


@contextlib.contextmanager
def network() -> Iterator[Network]:
    """Yields a network without hosts. Skips the test where namespaces are not allowed."""
    with contextlib.ExitStack() as stack:
        try:
            made = Network(stack)
        except (RuntimeError, OSError) as error:
            pytest.skip(f"network namespaces are not allowed here: {error}")
        yield made


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Stops a process for the time of a block."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@contextlib.contextmanager
def stuttering(pid: int) -> Iterator[None]:
    """Lets a process run for a short time only, every 1.5 s, for the time of a block."""
    end = threading.Event()

    def stutter() -> None:
        while not end.is_set():
            with stopped(pid):
                end.wait(_STOPPED_S)
            end.wait(_RUNS_S)

    thread = threading.Thread(target=stutter)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()
