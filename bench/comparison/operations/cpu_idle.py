"""The CPU time of a daemon while nothing happens."""

from __future__ import annotations

import time

from comparison.recorder import Recorder
from daemon_setup import Stage

_IDLE_S = 5.0


def measure(recorder: Recorder) -> None:
    """Measures a daemon with one attached client."""
    with Stage("--arena-size", "64MiB") as stage, recorder.attached(stage):
        time.sleep(2.0)  # its start has ended
        recorder.cpu_during(f"idle for {_IDLE_S:.0f} s", lambda: time.sleep(_IDLE_S))
