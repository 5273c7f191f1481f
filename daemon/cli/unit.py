"""`pagetier unit`: prints and installs the systemd units of the installed package."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import click
import msgspec

_CHECKSUM_COMMENT: Final = "# as `pagetier unit install` wrote it, if this is the SHA-256 of the lines above: "


def with_checksum(text: str) -> str:
    """Returns the text, which ends with a newline, and a comment with its checksum."""
    return f"{text}{_CHECKSUM_COMMENT}{_digest(text)}\n"


def is_unmodified(text: str) -> bool:
    """Returns whether a text ends with the comment of `with_checksum` and was not modified since."""
    body, found, digest = text.rpartition(_CHECKSUM_COMMENT)
    return bool(found) and digest == f"{_digest(body)}\n"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def write_whole(path: Path, content: bytes, mode: int) -> None:
    """Replaces a file or link as a whole. Raises OSError, which leaves the previous file in place."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    beside = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fchmod(handle, mode)
            os.fsync(handle)
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


# 31 characters are the most for a user's name, and "pagetier-" takes 9 of them.
_NAME = re.compile("[a-z][a-z0-9_-]{0,21}")
_TAKEN = {
    "pagetierd": "the default daemon has this name",
    "copy": "/etc/pagetier/copy.toml is what engines read, see `pagetier calibrate`",
}
_RULE = "1 to 22 of the characters a-z 0-9 _ -, the first of them a letter"


def tenant_name(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Returns a name that is valid for systemd, sysusers and file systems. Raises BadParameter, with the rule."""
    if value is None:
        return None
    if not _NAME.fullmatch(value):
        raise click.BadParameter(f'"{value}" cannot be a tenant\'s name: {_RULE}', ctx, param)
    if value in _TAKEN:
        raise click.BadParameter(f'"{value}" cannot be a tenant\'s name: {_TAKEN[value]}', ctx, param)
    return value


_FILES = Path(__file__).resolve().parents[2] / "systemd"
_PROGRAM = "/usr/bin/pagetierd"
_UNITS = Path("etc/systemd/system")
_DROP_IN = "metrics-on-localhost.conf"
_SYSUSERS = "pagetier.sysusers.conf"
# The unit sets them, too; commands that run outside of the unit read them here.
_TENANT_KEYS = 'name = "{user}"\nsocket = "/run/{user}/pagetier.sock"\n\n'
# Text of the default daemon's files, and its replacement in a tenant's files.
_TENANT_TEXTS = {
    '"pagetier"': '"pagetier-{tenant}"',
    "/pagetierd.toml": "/{tenant}.toml",
    "of pagetierd.toml": "of {tenant}.toml",
    "/var/lib/pagetier": "/var/lib/pagetier-{tenant}",
    "/run/pagetier/": "/run/pagetier-{tenant}/",
    "/pagetierd.service.d/": "/pagetierd@{tenant}.service.d/",
    "u pagetier ": "u pagetier-{tenant} ",
    "-aG pagetier": "-aG pagetier-{tenant}",
    "systemctl reload pagetierd": "systemctl reload pagetierd@{tenant}",
    "unit install --metrics": "unit install --tenant {tenant} --metrics",
}
_HIDDEN = ("/home", "/root", "/run/user", "/tmp", "/var/tmp")


class Installed(msgspec.Struct, frozen=True):
    """A file to install. keep: The administrator owns it once it exists."""

    source: str
    place: Path
    text: str
    keep: bool = False


@click.group()
def unit() -> None:
    """Print or install the systemd units, the system user and an example configuration."""


_with_metrics = click.option("--metrics", is_flag=True, help="Include the drop-in that metrics.listen on a port needs.")


@unit.command("print")
@click.option("--tenant", callback=tenant_name, metavar="NAME", help="The files for one tenant's own daemon.")
@_with_metrics
def print_units(tenant: str | None, metrics: bool) -> None:  # noqa: FBT001  click calls it so
    """Print the files and their locations; changes nothing."""
    for file in _files(_program(), tenant, metrics=metrics):
        click.echo(f"# ---- {file.place}\n{file.text}")


@unit.command(short_help="Install the units; starts nothing, keeps an existing configuration.")
@click.option(
    "--root", type=click.Path(path_type=Path), default=Path("/"), help="Install under this folder. [default: /]"
)
@click.option("--tenant", callback=tenant_name, metavar="NAME", help="The files for one tenant's own daemon.")
@_with_metrics
@click.option("--force", "replace", is_flag=True, help="Replace modified units, and links in their place.")
def install(root: Path, tenant: str | None, metrics: bool, replace: bool) -> None:  # noqa: FBT001  click calls it so
    """Install the units; starts nothing, and never changes an existing configuration.

    Unmodified units of an earlier version are replaced, and so is the drop-in of --metrics if it is installed. Put your
    own changes into a drop-in (systemctl edit). A link, for example a masked unit, counts as modified.

    Exit codes: 0: installed; 1: a file could not be written, or was modified.
    """
    program = _program()
    metrics = metrics or (root / _drop_in(tenant)).exists()  # an installed one must be of the same version
    changed = [
        file for file in _files(program, tenant, metrics=metrics) if not _install_file(root, file, replace=replace)
    ]
    for warning in _warnings(program):
        click.echo(f"warning: {warning}", err=True)
    _require_none(root, changed)
    name = f"pagetierd@{tenant}" if tenant else "pagetierd"
    click.echo(f"now: systemd-sysusers && systemctl daemon-reload && systemctl enable --now {name}")


def _require_none(root: Path, modified: Sequence[Installed]) -> None:
    if modified:
        names = ", ".join(_described(root, file) for file in modified)
        raise click.ClickException(f"modified, so not replaced: {names}; --force replaces them")


def _files(program: str, tenant: str | None, *, metrics: bool) -> Iterator[Installed]:
    users, etc = Path("etc/sysusers.d"), Path("etc/pagetier")
    at = "@" if tenant else ""
    for name in (f"pagetierd{at}.service", f"pagetierd-memory{at}.service", f"pagetierd-give-back{at}.service"):
        yield Installed(name, _UNITS / name, _text(name).replace(_PROGRAM, program))
    if metrics:
        yield Installed(_DROP_IN, _drop_in(tenant), _named_for(tenant, _text(_DROP_IN)))
    user = f"pagetier-{tenant}" if tenant else "pagetier"
    yield Installed(_SYSUSERS, users / f"{user}.conf", _named_for(tenant, _text(_SYSUSERS)))
    config = _named_for(tenant, _text("pagetierd.toml"))
    if tenant:
        config = config.replace("[arena]", _TENANT_KEYS.format(user=user) + "[arena]", 1)
    yield Installed("pagetierd.toml", etc / f"{tenant or 'pagetierd'}.toml", config, keep=True)


def _named_for(tenant: str | None, text: str) -> str:
    for plain, own in _TENANT_TEXTS.items() if tenant else ():
        text = text.replace(plain, own.format(tenant=tenant))
    return text


def _drop_in(tenant: str | None) -> Path:
    return _UNITS / (f"pagetierd@{tenant}.service.d" if tenant else "pagetierd.service.d") / _DROP_IN


def _text(name: str) -> str:
    try:
        return (_FILES / name).read_text()
    except OSError as error:
        raise click.ClickException(f"this installation lacks {_FILES / name}: {error.strerror}") from error


def _program() -> str:
    """Returns the path of this installation's `pagetierd`."""
    beside = Path(sys.executable).with_name("pagetierd")
    return str(beside) if beside.exists() else shutil.which("pagetierd") or _PROGRAM


def _install_file(root: Path, file: Installed, *, replace: bool) -> bool:
    """Writes a file. Returns False if a modified one exists and stays."""
    path = root / file.place
    try:
        text = file.text if file.keep else with_checksum(file.text)
        there = path.read_bytes() if path.is_file() else b""
        if there == text.encode() or (file.keep and _exists(path)):
            return True
        if _exists(path) and not (replace or _is_unmodified(path, there, file.text)):
            return False
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text.encode(), 0o644)
    except OSError as error:
        raise click.ClickException(f"{path}: {error.strerror}") from error
    click.echo(f"installed {path}")
    return True


def _exists(path: Path) -> bool:
    """Returns whether the path exists, including as a dangling link."""
    return path.is_symlink() or path.exists()


def _is_unmodified(path: Path, there: bytes, text: str) -> bool:
    """Returns whether the file was installed and not modified. A link was made by the administrator or by systemd."""
    return not path.is_symlink() and (there == text.encode() or is_unmodified(there.decode(errors="replace")))


def _described(root: Path, file: Installed) -> str:
    path = root / file.place
    return f"{file.place} (a link to {path.readlink()})" if path.is_symlink() else str(file.place)


def _warnings(program: str) -> Iterator[str]:
    """Yields reasons why the unit could not start its program."""
    real = {program, str(Path(program).resolve()), str(Path(sys.executable).resolve())}
    hidden = sorted(path for path in real if path.startswith(tuple(f"{folder}/" for folder in _HIDDEN)))
    if hidden:
        yield f"the service cannot access {hidden[0]}, as /home and /tmp are hidden from it; install to /opt or /usr"
