"""Connects commands to the daemon: over its socket, as an observer."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from shlex import quote
from typing import Any, Final, TypeVar

import click

from pagetier.daemon.config.cli_options import NonEmptyPath
from pagetier.daemon.host.peer_credentials import Rights
from pagetier.shm._core import Observer, ShmError
from pagetier.shm.daemon_link import Link, LinkError, RefusedError
from pagetier.shm.exit_codes import Exit
from pagetier.shm.protocol import BUILD, Answer, Observe, Refusal, Request
from pagetier.shm.segment_files import observe_and_close
from pagetier.shm.socket_path import closed_folder, default_socket
from pagetier.shm.units import parse_duration

GREETING_S = 5.0
_HTTP_S = 1.0  # for the HTTP process, which answers at once even if the daemon hangs
# HTTP answers it with an error, and to the control socket it is the beginning of a message that never comes: a daemon
# that is only slow logs nothing.
_NOT_HTTP = b"\r\n\0\0\r\n\r\n"
_ANSWER_S = 60.0
_OPEN = 'and set access.socket_mode = "0666"'
_REMEDIES: Final[Mapping[Rights, str]] = {
    Rights.WATCH: "to allow it, list the user in access.users or its group in access.groups if it runs engines, else,"
    f" only to observe, in access.watch_users or access.watch_groups, {_OPEN}",
    Rights.ATTACH: f"to allow this command, list the user in access.users or its group in access.groups, {_OPEN}",
    Rights.MANAGE: "run this command as root or as the daemon's own user: no setting allows it to others",
}
_NOT_WATCHING: Final = "may not watch"  # a command that needs more is refused with the setting for watching only
_TO_WATCH: Final = (
    "list the user there, or in access.users if it runs engines, and reload the daemon, or run this command as root or"
    " as the daemon's own user"
)
_Command = TypeVar("_Command", bound=Callable[..., Any])
_Answer = TypeVar("_Answer", bound=Answer)


class Unreachable(click.ClickException):
    """No daemon answers."""

    exit_code = Exit.UNREACHABLE


class Refused(click.ClickException):
    """The daemon rejected a request."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the daemon rejected the request: {reason}")
        self.reason = reason


class Daemon:
    """A daemon that answered. `observer` reads its index, and `extras` are those of its Welcome."""

    def __init__(self, path: Path, link: Link, observer: Observer, extras: tuple[str, ...]) -> None:
        self.path = path
        self.observer = observer
        self.extras = extras
        self._link = link

    @property
    def pid(self) -> int:
        """The PID of the daemon; 0 if it lives in a PID namespace that cannot be seen from here."""
        return self._link.daemon_pid

    def is_there(self) -> bool:
        """Returns whether the daemon still runs. Sends it nothing."""
        try:
            self._link.read(0.0)
        except LinkError:
            return False
        return True

    def ask(self, request: Request, kind: type[_Answer], work: float = 0.0) -> _Answer:
        """Returns the response.

        Args:
            request: The request.
            kind: The class of its response.
            work: The seconds that the request allows the daemon before it has to respond.

        Raises:
            Unreachable: No response of this kind comes.
            Refused: The request is rejected.
        """
        try:
            answer = self._link.ask(request, work + _ANSWER_S)
        except LinkError as error:
            raise Unreachable(_why_unusable(self.path, str(error))) from error
        if isinstance(answer, Refusal):
            raise Refused(answer.reason)
        if not isinstance(answer, kind):
            raise Unreachable(_why_unusable(self.path, "its response is of another kind"))
        return answer


@contextmanager
def daemon_at(path: Path, needs: Rights = Rights.WATCH, patience: float | None = None) -> Iterator[Daemon]:
    """Yields the daemon that listens at a path.

    Args:
        path: The path of its control socket.
        needs: The right that the command needs: if the socket is closed to this user, the error says what grants it.
        patience: The seconds for the daemon's greeting; None for GREETING_S.

    Yields:
        The daemon.

    Raises:
        Unreachable: No daemon answers.
    """
    link, observer, extras = _connect(path, needs, GREETING_S if patience is None else patience)
    try:
        yield Daemon(path, link, observer, extras)
    finally:
        link.close()


def _connect(path: Path, needs: Rights, patience: float) -> tuple[Link, Observer, tuple[str, ...]]:
    try:
        link = Link(path, patience)
    except RefusedError as error:
        raise Unreachable(str(error)) from error
    except LinkError as error:
        raise Unreachable(_why_none(path, error, needs)) from error
    try:
        greeting = link.greet(Observe(BUILD), patience)
        return link, observe_and_close(greeting.descriptors), greeting.welcome.extras
    except (LinkError, ShmError, OSError) as error:
        link.close()
        # Only a daemon refuses, and it would log the probe as a wrong message of its own protocol.
        if not isinstance(error, RefusedError) and _speaks_http(path):
            why = "it is a socket of the HTTP interface (http.listen, metrics.listen); name the control socket (socket)"
            raise Unreachable(f"cannot use the daemon on {path}: {why} with --socket") from error
        remedy = _TO_WATCH if needs is Rights.WATCH else _REMEDIES[needs]
        raise Unreachable(
            _why_unusable(path, f"{error}; {remedy}" if _NOT_WATCHING in str(error) else str(error))
        ) from error


def _speaks_http(path: Path) -> bool:
    """Returns whether HTTP is answered at a path, where no greeting was."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe, suppress(OSError):
        probe.settimeout(_HTTP_S)
        probe.connect(os.fspath(path))
        probe.sendall(_NOT_HTTP)
        return probe.recv(5) == b"HTTP/"
    return False


def _why_none(path: Path, error: LinkError, needs: Rights) -> str:
    """Returns why no daemon could be reached, and what to do."""
    if isinstance(error.__cause__, PermissionError):
        if closed := closed_folder(path):
            return f"{error}: this user may not enter {closed}: run this command as root or as the daemon's own user"
        ended = f"whether a daemon still runs there, root sees with `pagetier doctor --socket {quote(os.fspath(path))}`"
        return f"{error}: this user may not open the daemon's socket; {_REMEDIES[needs]}; {ended}"
    if path.is_dir():
        return f"{error}; name the socket of pagetierd with --socket or PAGETIER_SOCKET"
    if path.exists() and not path.is_socket():
        return f"{path} is not a socket: name the socket of pagetierd with --socket"
    ended = f": the daemon of {path} has ended" if path.exists() else f": {error}"
    return f"no daemon{ended}; start pagetierd, or name its socket with --socket"


def _why_unusable(path: Path, why: str) -> str:
    """Returns why a daemon that is there cannot be used."""
    advice = (
        "; it may be stopped (SIGSTOP) or overloaded: see its process and its log" if "does not answer" in why else ""
    )
    return f"cannot use the daemon on {path}: {why}{advice}"


def socket_option(command: _Command) -> _Command:
    """Adds --socket, as the parameter `socket`: a Path."""
    return click.option(
        "--socket",
        type=NonEmptyPath(readable=False),  # the error of connecting is clearer
        default=default_socket,
        help="The daemon's control socket. [default: $PAGETIER_SOCKET, or this user's default]",
    )(command)


def duration_option(name: str, default: str | None, meaning: str) -> Callable[[_Command], _Command]:
    """Adds an option for a time, as a parameter of its name: a number of seconds, None if it has no value."""
    return click.option(name, metavar="DURATION", callback=_seconds, default=default, show_default=True, help=meaning)


def _seconds(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """Returns the time in seconds. An invalid one is a usage error."""
    try:
        return None if value is None else parse_duration(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
