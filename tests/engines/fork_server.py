"""A process that has imported vLLM and forks an engine within seconds.

It receives a message for each engine on the socket whose descriptor is in the environment: the engine's environment as
JSON and three descriptors: for its commands, its responses and its log. It returns the process ID.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

if TYPE_CHECKING:
    from pagetier.client import Client
    from pagetier.client.engines.vllm.settings import ConnectorSettings
    from pagetier.client.reconnect import LinkEvent


def main() -> None:
    """Forks engines until the socket is closed."""
    _import()
    signal.signal(signal.SIGCHLD, _reap)
    control = socket.socket(fileno=int(os.environ["NURSERY"]))
    while True:
        text, descriptors, _, _ = socket.recv_fds(control, 1 << 16, 3)
        if not text:
            return
        child = os.fork()
        if not child:
            control.close()
            _live(json.loads(text), *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        control.send(b"%d\n" % child)


def _import() -> None:
    """Imports everything that an engine's three processes need, without starting a thread."""
    import vllm.v1.engine.core
    import vllm.v1.worker.cpu_worker  # noqa: F401
    from vllm import LLM  # noqa: F401
    from vllm.platforms import current_platform

    # On a CPU vLLM spawns its own processes, and each of them takes as long to start as the first one.
    platform = type(current_platform)
    checked = platform.check_and_update_config

    def checked_and_forking(_: Any, config: Any) -> None:
        checked(config)
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"

    platform.check_and_update_config = classmethod(checked_and_forking)


def _long_s() -> float:
    """Returns vllm_engine.LONG_S."""
    return float(os.environ["LONG_S"])


def _wait_long() -> None:
    """Lets this engine wait long for what takes a moment, because a busy machine may stop for seconds.

    A test whose engine starts before its weights are known sets IDENTIFY_S in the engine's environment.
    """
    from pagetier.client.engines.vllm import connector, setup, worker

    patch.object(connector, "_IDENTIFY_S", float(os.environ.get("IDENTIFY_S", _long_s()))).start()
    patch.object(worker, "_CANCEL_AFTER_S", _long_s()).start()
    patch.object(setup, "_client", partial(_attached, setup._client)).start()


def _attached(
    client_of: Callable[..., Client], settings: ConnectorSettings, on_link: Callable[[LinkEvent], None]
) -> Client:
    """Returns the client of one half of the connector, which is attached if there is a daemon.

    Each change of its connection is logged, because a store that comes before the half has mapped the memory is
    dropped, and the worker's half says nothing about that.
    """
    half = token_hex(4)

    def logged(event: LinkEvent) -> None:
        on_link(event)
        os.write(sys.stdout.fileno(), f"\nhalf {half} is {event.state.name}\n".encode())

    client = client_of(settings, logged)
    if Path(settings.socket).exists():
        client.wait_attached(_long_s())
    return client


def _reap(*_: object) -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _live(environment: dict[str, str], commands: int, answers: int, log: int) -> None:
    """Runs the engine's process until its end."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    os.environ.update(environment)
    sys.path.extend(one for one in environment.get("PYTHONPATH", "").split(os.pathsep) if one)
    tempfile.tempdir = None  # of the fork server, which has asked for it before
    for descriptor in (1, 2):
        os.dup2(log, descriptor)
    os.close(log)
    import engine_commands

    code = 1
    try:
        _wait_long()
        with os.fdopen(commands) as lines, os.fdopen(answers, "w", buffering=1) as out:
            engine_commands.main(lines, out)
        code = 0
    except BaseException:  # noqa: BLE001
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
