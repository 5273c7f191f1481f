"""How commands reach the daemon: by its socket, as somebody who only looks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click

from pagetier.daemon.common.exit_codes import Exit
from pagetier.daemon.config.cli_options import SomePath
from pagetier.shm._core import Observer, ShmError
from pagetier.shm.daemon_link import Link, LinkError, RefusedError
from pagetier.shm.protocol import BUILD, Answer, Observe, Refusal, Request
from pagetier.shm.socket_path import default_socket

_GREETING_S = 5.0
_ANSWER_S = 60.0
_SHUT = (
    "this user may not open the daemon's socket: access.watch_users or access.watch_groups name who may look, and"
    ' access.socket_mode = "0666" lets them open it'
)
_Command = TypeVar("_Command", bound=Callable[..., Any])
_Answer = TypeVar("_Answer", bound=Answer)


class Unreachable(click.ClickException):
    """There is no daemon that answers."""

    exit_code = Exit.UNREACHABLE


class Refused(click.ClickException):
    """The daemon does not do it, for this user or just now."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the daemon refuses: {reason}")
        self.reason = reason


class Daemon:
    """A daemon that answered. `observer` looks into its index."""

    def __init__(self, path: Path, link: Link, observer: Observer) -> None:
        self.path = path
        self.observer = observer
        self._link = link

    def is_there(self) -> bool:
        """Whether it has not ended since. Costs it nothing."""
        try:
            self._link.read(0.0)
        except LinkError:
            return False
        return True

    def ask(self, request: Request, kind: type[_Answer]) -> _Answer:
        """Its answer. Raises Unreachable if none of this kind comes, and Refused."""
        try:
            answer = self._link.ask(request, _ANSWER_S)
        except LinkError as error:
            raise _unreachable(self.path, str(error)) from error
        if isinstance(answer, Refusal):
            raise Refused(answer.reason)
        if not isinstance(answer, kind):
            raise _unreachable(self.path, "it does not answer")
        return answer


@contextmanager
def daemon_at(path: Path) -> Iterator[Daemon]:
    """The daemon that listens there. Raises Unreachable."""
    link, observer = _connect(path)
    try:
        yield Daemon(path, link, observer)
    finally:
        link.close()


def _connect(path: Path) -> tuple[Link, Observer]:
    try:
        link = Link(path, _GREETING_S)
    except RefusedError as error:
        raise Unreachable(str(error)) from error
    except LinkError as error:
        if isinstance(error.__cause__, PermissionError):
            raise Unreachable(f"{error}: {_SHUT}") from error
        raise Unreachable(f"no daemon: {error}; start pagetierd, or name its socket with --socket") from error
    try:
        return link, _observer(link)
    except (LinkError, ShmError, OSError) as error:
        link.close()
        raise _unreachable(path, str(error)) from error


def _observer(link: Link) -> Observer:
    descriptors = link.greet(Observe(BUILD), _GREETING_S).descriptors
    try:
        index, locks = descriptors
        return Observer(index, locks)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _unreachable(path: Path, why: str) -> Unreachable:
    return Unreachable(f"the daemon on {path} can not be used: {why}")


def socket_option(command: _Command) -> _Command:
    """Adds --socket, as the parameter `socket`: a Path."""
    return click.option(
        "--socket",
        type=SomePath(readable=False),  # connecting says better what is wrong
        default=default_socket,
        help="The daemon's control socket. [default: where it is for this user, see $PAGETIER_SOCKET]",
    )(command)
