"""`pagetier unit`: prints and installs the systemd units of the installed package."""

from __future__ import annotations

import hashlib
import ipaddress
import os
import re
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import msgspec

from pagetier.daemon.host.folders import make_folders


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


def remote_addresses(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    """Returns addresses that systemd can filter by. Raises BadParameter for others."""
    for address in value:
        try:
            ipaddress.ip_network(address, strict=False)
        except ValueError as error:
            if address not in _NAMED_ADDRESSES:
                named = ", ".join(_NAMED_ADDRESSES)
                raise click.BadParameter(
                    f"{address!r} is no network: write 10.0.0.0/8, or {named}", ctx, param
                ) from error
    return value


_NAMED_ADDRESSES = ("any", "localhost", "link-local", "multicast")
_FILES = Path(__file__).resolve().parents[2] / "systemd"
_SHIPPED = "shipped.sha256"  # the checksums of the units of all versions
_UNITS = Path("etc/systemd/system")
_SANDBOX = "10-sandbox.conf"
_METRICS = "metrics-on-localhost.conf"
_REMOTE_NETWORK = "remote-network.conf"
_REMOTE_ADDRESSES = "remote-addresses.conf"
_PROGRAM = b"/usr/bin/pagetierd"
_ANY_PROGRAM = re.compile(rb"/\S*/pagetierd(?= --config )")
_PYTHON = b"/usr/bin/python3"
_ANY_PYTHON = re.compile(rb"/\S*/python[0-9.]*(?= -m pagetier)")
_HIDDEN = ("/home", "/root", "/run/user", "/tmp", "/var/tmp")


class UnitFile(msgspec.Struct, frozen=True):
    """A file to install. keep: The administrator owns it once it exists."""

    place: Path
    content: bytes
    keep: bool = False


@click.group()
def unit() -> None:
    """Print or install the systemd units, the system user and an example configuration."""


_with_metrics = click.option(
    "--metrics", is_flag=True, help="Include the drop-in that a port in metrics.listen or http.listen needs."
)


_with_remote = click.option(
    "--remote",
    "addresses",
    multiple=True,
    callback=remote_addresses,
    metavar="ADDRESSES",
    help="Include the unit of the fleet's worker, which may reach these addresses (10.0.0.0/8, localhost); repeatable.",
)


@unit.command("print")
@click.option("--tenant", callback=tenant_name, metavar="NAME", help="The files for one tenant's own daemon.")
@_with_metrics
@_with_remote
def print_units(tenant: str | None, metrics: bool, addresses: tuple[str, ...]) -> None:  # noqa: FBT001  click calls it so
    """Print the files and their locations; changes nothing."""
    for file in _files(_program(), tenant, addresses, metrics=metrics):
        click.echo(f"# ---- {file.place}\n{file.content.decode()}")


@unit.command(short_help="Install the units; starts nothing, keeps an existing configuration.")
@click.option(
    "--root", type=click.Path(path_type=Path), default=Path("/"), help="Install under this folder. [default: /]"
)
@click.option("--tenant", callback=tenant_name, metavar="NAME", help="The files for one tenant's own daemon.")
@_with_metrics
@_with_remote
@click.option("--force", "replace", is_flag=True, help="Replace modified units, and links in their place.")
def install(
    root: Path,
    tenant: str | None,
    metrics: bool,  # noqa: FBT001  click calls it so
    addresses: tuple[str, ...],
    replace: bool,  # noqa: FBT001
) -> None:
    """Install the units; starts nothing, and never changes an existing configuration.

    Unmodified units and drop-ins of an earlier version are replaced, and so are those of --metrics and --remote if they
    are installed.
    Put your own changes into a drop-in of your own (systemctl edit). A link, for example a masked unit, counts as
    modified.

    Exit codes: 0: installed; 1: a file could not be written, or was modified.
    """
    program = _program()
    metrics = metrics or (root / _drop_in(tenant)).exists()  # an installed one must be of the same version
    addresses = addresses or _installed_addresses(root, tenant)
    files = list(_files(program, tenant, addresses, metrics=metrics))
    changed = [file for file in files if not _install_file(root, file, replace=replace)]
    for warning in (*_warnings(program), *_unreadable(root, files)):
        click.echo(f"warning: {warning}", err=True)
    _require_none(root, changed)
    name = f"pagetierd@{tenant}" if tenant else "pagetierd"
    names = f"{name} pagetierd-remote{f'@{tenant}' if tenant else ''}" if addresses else name
    click.echo(f"now: systemd-sysusers && systemctl daemon-reload && systemctl enable --now {names}")


def _require_none(root: Path, modified: Sequence[UnitFile]) -> None:
    if modified:
        names = ", ".join(_described(root, file) for file in modified)
        advice = "put changes into a drop-in (systemctl edit), then --force replaces them"
        raise click.ClickException(f"modified, so not replaced: {names}; {advice}")


def _installed_addresses(root: Path, tenant: str | None) -> tuple[str, ...]:
    """Returns any address if the unit of the fleet's worker is installed: it must be of the same version."""
    return ("localhost",) if (root / _addresses_file(tenant)).exists() else ()


def _addresses_file(tenant: str | None) -> Path:
    return _UNITS / f"pagetierd-remote{f'@{tenant}' if tenant else ''}.service.d" / "30-addresses.conf"


def _remote_files(tenant: str | None, addresses: tuple[str, ...]) -> Iterator[UnitFile]:
    at = "@" if tenant else ""
    unit = f"pagetierd-remote{at}.service"
    yield UnitFile(_UNITS / unit, _content(unit).replace(_PYTHON, os.fsencode(sys.executable)))
    yield UnitFile(_UNITS / f"{unit}.d" / "20-network.conf", _content(_REMOTE_NETWORK))
    allowed = _content(_REMOTE_ADDRESSES).replace(b"=ADDRESSES", f"={' '.join(addresses)}".encode())
    yield UnitFile(_addresses_file(tenant), allowed, keep=True)


def _files(program: str, tenant: str | None, addresses: tuple[str, ...], *, metrics: bool) -> Iterator[UnitFile]:
    at = "@" if tenant else ""
    for name in (f"pagetierd{at}.service", f"pagetierd-memory{at}.service", f"pagetierd-release-memory{at}.service"):
        yield UnitFile(_UNITS / name, _content(name).replace(_PROGRAM, os.fsencode(program)))
    for folder in (f"pagetierd{at}.service.d", f"pagetierd-{at}.service.d"):  # the second one is that of the other two
        yield UnitFile(_UNITS / folder / _SANDBOX, _content(_SANDBOX))
    if metrics:
        yield UnitFile(_drop_in(tenant), _content(_METRICS))
    if addresses:
        yield from _remote_files(tenant, addresses)
    yield from _tenant_files(tenant) if tenant else _default_files()


def _default_files() -> Iterator[UnitFile]:
    yield UnitFile(Path("etc/sysusers.d/pagetier.conf"), _content("pagetier.sysusers.conf"), keep=True)
    yield UnitFile(Path("etc/pagetier/pagetierd.toml"), _content("pagetierd.toml"), keep=True)


def _tenant_files(tenant: str) -> Iterator[UnitFile]:
    places = {
        "tenant.sysusers.conf": f"etc/sysusers.d/pagetier-{tenant}.conf",
        "tenant.toml": f"etc/pagetier/{tenant}.toml",
    }
    for name, place in places.items():
        yield UnitFile(Path(place), _content(name).replace(b"TENANT", tenant.encode()), keep=True)


def _drop_in(tenant: str | None) -> Path:
    return _UNITS / (f"pagetierd@{tenant}.service.d" if tenant else "pagetierd.service.d") / _METRICS


def _content(name: str) -> bytes:
    try:
        return (_FILES / name).read_bytes()
    except OSError as error:
        raise click.ClickException(f"this installation lacks {_FILES / name}: {error.strerror}") from error


def _program() -> str:
    """Returns the path of this installation's `pagetierd`."""
    beside = Path(sys.executable).with_name("pagetierd")
    return str(beside) if beside.exists() else shutil.which("pagetierd") or _PROGRAM.decode()


def _install_file(root: Path, file: UnitFile, *, replace: bool) -> bool:
    """Writes a file. Returns False if a modified one exists and stays."""
    path = root / file.place
    try:
        there = path.read_bytes() if path.is_file() else b""
        if there == file.content or (file.keep and _exists(path)):
            return True
        if _exists(path) and not (replace or _is_shipped(path, there)):
            return False
        make_folders(path.parent)
        write_whole(path, file.content, 0o644)
    except OSError as error:
        raise click.ClickException(f"{path}: {error.strerror}") from error
    click.echo(f"installed {path}")
    return True


def _exists(path: Path) -> bool:
    """Returns whether the path exists, including as a dangling link."""
    return path.is_symlink() or path.exists()


def _is_shipped(path: Path, there: bytes) -> bool:
    """Returns whether a version of pagetier ships this file. A link was made by the administrator or by systemd.

    The path of the program does not count, since each installation has its own.
    """
    plain = _ANY_PYTHON.sub(_PYTHON, _ANY_PROGRAM.sub(_PROGRAM, there))
    digest = hashlib.sha256(plain).hexdigest()
    return not path.is_symlink() and digest in _content(_SHIPPED).decode().split()


def _described(root: Path, file: UnitFile) -> str:
    path = root / file.place
    return f"{file.place} (a link to {path.readlink()})" if path.is_symlink() else str(file.place)


def _warnings(program: str) -> Iterator[str]:
    """Yields reasons why the unit could not start its program."""
    real = {program, str(Path(program).resolve()), str(Path(sys.executable).resolve())}
    hidden = sorted(path for path in real if path.startswith(tuple(f"{folder}/" for folder in _HIDDEN)))
    if hidden:
        yield f"the service cannot access {hidden[0]}, as /home and /tmp are hidden from it; install to /opt or /usr"


def _unreadable(root: Path, files: Sequence[UnitFile]) -> Iterator[str]:
    """Yields what keeps the service's user from a configuration file that an earlier installation left."""
    for file in files:
        folders = [root / folder for folder in file.place.parents][-2::-1] if file.place.suffix == ".toml" else []
        closed = [str(folder) for folder in folders if not _allows(folder, stat.S_IXOTH, stat.S_IXGRP)]
        if closed:
            yield f"the service may not enter {closed[0]}: chmod o+x {closed[0]}"
        elif folders and not _allows(root / file.place, stat.S_IROTH, stat.S_IRGRP):
            yield f"the service may not read {root / file.place}: chmod o+r {root / file.place}"


def _allows(path: Path, others: int, group: int) -> bool:
    """Returns whether a path has a right for all users; or for a group, which an administrator has then chosen."""
    try:
        found = path.stat()
    except FileNotFoundError:  # a link to what is mounted later
        return True
    return bool(found.st_mode & others or (found.st_gid and found.st_mode & group) or found.st_uid)
