"""Signals in the first moments of the daemon, while its modules are imported and before it can handle them."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from running_daemon import RunningDaemon

# The signal comes while the named module is imported, or in the named function of the daemon.
WHILE_IMPORTED = """
import importlib.abc, os, signal, sys
class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "{module}":
            os.kill(os.getpid(), {number})
sys.meta_path.insert(0, Finder())
from pagetier.daemon.start import start
start()
"""
WHILE_OPENING = """
import os
import pagetier.daemon.main as main
opened = main.open_segments
def open_segments(*arguments):
    os.kill(os.getpid(), {number})
    return opened(*arguments)
main.open_segments = open_segments
from pagetier.daemon.start import start
start()
"""
MOMENTS = {
    "first import": WHILE_IMPORTED.replace("{module}", "pagetier.daemon.main"),
    "last import": WHILE_IMPORTED.replace("{module}", "pagetier.shm.stdio"),
    "segments": WHILE_OPENING,
}


class SignalledDaemon(RunningDaemon):
    """A daemon that gets a signal at a moment of its start."""

    def __init__(self, number: signal.Signals, moment: str) -> None:
        super().__init__()
        self._code = MOMENTS[moment].replace("{number}", str(int(number)))

    def launch(self, *more: str) -> subprocess.Popen[bytes]:
        """Starts the daemon without waiting."""
        command = [sys.executable, "-c", self._code, "--name", self.name, "--socket", str(self.socket)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen([*command, *self._arguments, *more], stderr=log, stdout=log)
        return self.process


@pytest.mark.parametrize("moment", MOMENTS)
def test_an_early_reload_is_done_when_the_daemon_is_ready(moment: str) -> None:
    with SignalledDaemon(signal.SIGHUP, moment) as daemon:
        assert daemon.stop() == 0
        assert len(daemon.lines("event=reloaded")) == 1


@pytest.mark.parametrize("moment", MOMENTS)
def test_an_early_hand_over_ends_the_daemon_as_a_later_one_does(moment: str) -> None:
    daemon = SignalledDaemon(signal.SIGUSR1, moment)
    daemon.launch()
    try:
        assert daemon.wait() == 0, daemon.log.read_text()
        assert [line for line in daemon.lines("event=stopped") if "way=hand_over" in line], daemon.log.read_text()
    finally:
        subprocess.run(
            [
                sys.executable,
                "-c",
                "from pagetier.daemon.main import main; main()",
                "--name",
                daemon.name,
                "--release-memory",
            ],
            stderr=subprocess.DEVNULL,
            check=True,
        )
        daemon.folder.cleanup()
    assert daemon.leftovers() == []
