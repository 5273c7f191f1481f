"""The files that `pagetier unit` prints, installs and removes: where they belong, and whether they were changed."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click
import msgspec

_FILES = Path(__file__).resolve().parents[2] / "systemd"
_SHIPPED = "shipped.sha256"  # the checksums of the units of all versions
UNITS = Path("etc/systemd/system")
_SANDBOX = "10-sandbox.conf"
_METRICS = "metrics-on-localhost.conf"
_REMOTE_NETWORK = "remote-network.conf"
_REMOTE_ADDRESSES = "remote-addresses.conf"
_PROGRAM = b"/usr/bin/pagetierd"
_ANY_PROGRAM = re.compile(rb"/\S*/pagetierd(?= --config )")
_PYTHON = b"/usr/bin/python3"
_ANY_PYTHON = re.compile(rb"/\S*/python[0-9.]*(?= -m pagetier)")


class UnitFile(msgspec.Struct, frozen=True):
    """A file to install. keep: The administrator owns it once it exists."""

    place: Path
    content: bytes
    keep: bool = False


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


_MARK = b"# Installed by `pagetier unit`; sha256 of what follows: "


def marked(content: bytes) -> bytes:
    """Returns the content to install: its first line tells an unmodified file of any version from a modified one."""
    return b"%s%s\n%s" % (_MARK, _digest(content).encode(), content)


def _digest(content: bytes) -> str:
    """Returns a checksum without the path of the program, since each installation has its own."""
    return hashlib.sha256(_ANY_PYTHON.sub(_PYTHON, _ANY_PROGRAM.sub(_PROGRAM, content))).hexdigest()


def is_unmodified(path: Path, there: bytes) -> bool:
    """Returns whether the file is as it was installed. A link was made by the administrator or by systemd.

    Files of versions that wrote no mark are known by their checksums.
    """
    first, _, rest = there.partition(b"\n")
    if path.is_symlink():
        return False
    if first.startswith(_MARK):
        return first.removeprefix(_MARK) == _digest(rest).encode()
    return _digest(there) in _content(_SHIPPED).decode().split()


def installable_files(tenant: str | None, addresses: tuple[str, ...], *, metrics: bool) -> Iterator[UnitFile]:
    """Yields the files of the default daemon, or of a tenant's."""
    program = installed_program()
    at = "@" if tenant else ""
    for name in (f"pagetierd{at}.service", f"pagetierd-memory{at}.service", f"pagetierd-release-memory{at}.service"):
        yield UnitFile(UNITS / name, _content(name).replace(_PROGRAM, os.fsencode(program)))
    for folder in (f"pagetierd{at}.service.d", f"pagetierd-{at}.service.d"):  # the second one is that of the other two
        yield UnitFile(UNITS / folder / _SANDBOX, _content(_SANDBOX))
    if metrics:
        yield UnitFile(metrics_drop_in(tenant), _content(_METRICS))
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


def metrics_drop_in(tenant: str | None) -> Path:
    """Returns the place of the drop-in that a port on localhost needs."""
    return UNITS / (f"pagetierd@{tenant}.service.d" if tenant else "pagetierd.service.d") / _METRICS


def _content(name: str) -> bytes:
    try:
        return (_FILES / name).read_bytes()
    except OSError as error:
        raise click.ClickException(f"this installation lacks {_FILES / name}: {error.strerror}") from error


def installed_program() -> str:
    """Returns the path of this installation's `pagetierd`."""
    beside = Path(sys.executable).with_name("pagetierd")
    return str(beside) if beside.exists() else shutil.which("pagetierd") or _PROGRAM.decode()


def addresses_file(tenant: str | None) -> Path:
    """Returns the place of the addresses that the fleet's worker may reach."""
    return UNITS / f"pagetierd-remote{f'@{tenant}' if tenant else ''}.service.d" / "30-addresses.conf"


def _remote_files(tenant: str | None, addresses: tuple[str, ...]) -> Iterator[UnitFile]:
    at = "@" if tenant else ""
    unit = f"pagetierd-remote{at}.service"
    yield UnitFile(UNITS / unit, _content(unit).replace(_PYTHON, os.fsencode(sys.executable)))
    yield UnitFile(UNITS / f"{unit}.d" / "20-network.conf", _content(_REMOTE_NETWORK))
    allowed = _content(_REMOTE_ADDRESSES).replace(b"=ADDRESSES", f"={' '.join(addresses)}".encode())
    yield UnitFile(addresses_file(tenant), allowed, keep=True)


def exists(path: Path) -> bool:
    """Returns whether the path exists, including as a dangling link."""
    return path.is_symlink() or path.exists()


def described(root: Path, file: UnitFile) -> str:
    """Returns the place of a file, and the target of a link."""
    path = root / file.place
    return f"{file.place} (a link to {path.readlink()})" if path.is_symlink() else str(file.place)
