"""`pagetier unit remove`: removes what was installed and, on request, what the service has made."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import socket
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click
import msgspec

from pagetier.daemon.cli.unit_files import UNITS, UnitFile, described, exists, installable_files, is_unmodified
from pagetier.shm.socket_trust import peer_credentials
from pagetier.shm.units import format_size

_FOLDERS: Final = re.compile(r"\d+(\.new)?")  # the environments of a disk tier
_FILES: Final = ("owner", "state", "state.tmp", "lookups", "lookups.tmp")
_IN_ENVIRONMENT: Final = re.compile(r"data\.mdb|lock\.mdb|frames\..*")


class InstalledService(msgspec.Struct, frozen=True):
    """The daemon of a host, or of a tenant, whose files are below `root`."""

    root: Path
    tenant: str | None

    @property
    def user(self) -> str:
        """The name of its user and group, which its folders have as well."""
        return f"pagetier-{self.tenant}" if self.tenant else "pagetier"

    @property
    def units(self) -> str:
        """The units that an administrator enables."""
        at = f"@{self.tenant}" if self.tenant else ""
        return f"pagetierd{at} pagetierd-remote{at}"

    def disk_folders(self) -> list[Path]:
        """Returns the existing folders of its disk tier, and the one that systemd made for it."""
        named = [*self._configured_folders(), f"/var/lib/{self.user}"]
        folders = dict.fromkeys(self.root / name.lstrip("/") for name in named if name.startswith("/"))
        return [folder for folder in folders if exists(folder)]

    def _configured_folders(self) -> list[str]:
        try:
            settings = tomllib.loads((self.root / f"etc/pagetier/{self.tenant or 'pagetierd'}.toml").read_text())
            path = settings["disk"]["path"]
        except (OSError, ValueError, KeyError, TypeError):
            return []
        return [str(each) for each in (path if isinstance(path, list) else [path])]

    def require_stopped(self) -> None:
        """Raises ClickException if a unit is enabled, or if the daemon runs: its files are in use."""
        wants = (self.root / UNITS).glob("*.wants")
        links = [link for folder in wants for unit in self.units.split() if exists(link := folder / f"{unit}.service")]
        disable = f"systemctl disable --now {self.units}"
        if links:
            raise _still(f"{links[0].name} is enabled", disable)
        in_use = f"{self._socket} is in use by a daemon"
        match self._listener():
            case None:
                return
            case pid if self._is_service(pid):
                raise _still(in_use, disable)
            case pid:
                raise _still(f"{in_use} that was started by hand", f"kill {pid}, or Ctrl-C in its terminal")

    @property
    def _socket(self) -> Path:
        return self.root / f"run/{self.user}/pagetier.sock"

    def _listener(self) -> int | None:
        """Returns the PID of the daemon, 0 if it is in another PID namespace; None if there is no daemon."""
        with socket.socket(socket.AF_UNIX) as tried, contextlib.suppress(OSError):
            tried.connect(str(self._socket))
            return peer_credentials(tried)[0]
        return None

    def _is_service(self, pid: int) -> bool:
        """Returns whether a process belongs to a unit, or may do so."""
        try:
            return any(f"/{unit}.service" in Path(f"/proc/{pid}/cgroup").read_text() for unit in self.units.split())
        except OSError:
            return True

    def installed_files(self) -> Iterator[UnitFile]:
        """Yields the files of this service that exist; templates only if no other tenant needs them."""
        others = [file for file in (self.root / "etc/sysusers.d").glob("pagetier-*.conf") if file.stem != self.user]
        for file in installable_files(self.tenant, ("localhost",), metrics=True):
            if exists(self.root / file.place) and not (others and "@." in str(file.place)):
                yield file

    def has_user(self) -> bool:
        """Returns whether its user exists."""
        return self._is_listed("passwd")

    def remove_user(self) -> None:
        """Removes its user and group. Raises ClickException."""
        prefix = [] if self.root == Path("/") else ["--prefix", str(self.root)]
        for program, database in (("userdel", "passwd"), ("groupdel", "group")):
            if self._is_listed(database):  # userdel removes the group as well, unless it has other members
                _run([program, *prefix, self.user])
                click.echo(f"removed {self.user} from /etc/{database}")

    def _is_listed(self, database: str) -> bool:
        with contextlib.suppress(OSError):
            lines = (self.root / "etc" / database).read_text(errors="replace").splitlines()
            return any(line.startswith(f"{self.user}:") for line in lines)
        return False


def _still(state: str, remedy: str) -> click.ClickException:
    return click.ClickException(f"{state}, so nothing was removed; first: {remedy}")


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise click.ClickException(f"{command[0]}: {error.strerror}") from error
    if done.returncode:
        raise click.ClickException(f"{' '.join(command)}: {done.stderr.strip()}")


def remove_files(service: InstalledService) -> list[UnitFile]:
    """Removes unmodified files and the folders that they leave empty. Returns the modified ones, which stay."""
    files = list(service.installed_files())
    modified = [file for file in files if not _remove_file(service.root, file)]
    for file in modified:
        click.echo(f"left {service.root / described(service.root, file)}: it was modified")
    return modified


def _remove_file(root: Path, file: UnitFile) -> bool:
    path = root / file.place
    try:
        there = b"" if path.is_symlink() or not path.is_file() else path.read_bytes()
        if there != file.content and not is_unmodified(path, there):
            return False
        path.unlink()
    except OSError as error:
        raise click.ClickException(f"{path}: {error.strerror}") from error
    click.echo(f"removed {path}")
    for folder in _folders_of(root, path):
        try:
            folder.rmdir()
        except OSError:
            break  # it is not empty
    return True


def _folders_of(root: Path, path: Path) -> Iterator[Path]:
    """Yields the folders to remove if they are empty: below another root than the host's all that may be installed."""
    for folder in path.parents:
        if folder == root or (root.resolve() == Path("/") and not _is_own(folder)):
            return
        yield folder


def _is_own(folder: Path) -> bool:
    return folder.name.endswith(".service.d") or folder.name == "pagetier"


def question_of(service: InstalledService) -> str:
    """Returns the question before a purge; "" if there is nothing to purge."""
    folders = [f"{folder} ({format_size(_bytes_in(folder))})" for folder in service.disk_folders()]
    user = [f"user and group {service.user}"] if service.has_user() else []
    things = ", ".join((*folders, *user))
    return f"Remove for good: {things}?" if things else ""


def _bytes_in(folder: Path) -> int:
    return sum(512 * (Path(at) / name).lstat().st_blocks for at, _, names in os.walk(folder) for name in names)


def purge(service: InstalledService) -> bool:
    """Removes disk folders, and the user unless a folder stays. Returns whether all of them are gone."""
    kept = {folder: why for folder in service.disk_folders() if (why := _purge_folder(folder))}
    for folder, why in kept.items():
        click.echo(f"left {folder}: {why}")
    if not kept:
        service.remove_user()
    return not kept


def _purge_folder(folder: Path) -> str:
    """Removes a folder that contains the disk tier's files only. Returns why it stays, or ""."""
    try:
        if folder.is_symlink() or not folder.is_dir():
            return "it is a link or a file"
        if foreign := next(_foreign_files(folder), ""):
            return f"it contains other files ({foreign})"
        with _locked(folder):
            shutil.rmtree(folder)  # follows no links
    except BlockingIOError:
        return "it is in use by a daemon"
    except OSError as error:
        return error.strerror or str(error)
    click.echo(f"removed {folder}")
    return ""


def _foreign_files(folder: Path) -> Iterator[str]:
    for path in sorted(folder.iterdir()):
        if path.is_dir() and not path.is_symlink() and _FOLDERS.fullmatch(path.name):
            yield from (str(file) for file in path.iterdir() if not _IN_ENVIRONMENT.fullmatch(file.name))
        elif path.name not in _FILES:
            yield str(path)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keeps the folder's lock, as a disk worker does. Raises BlockingIOError if a worker has it, OSError."""
    descriptor = os.open(folder / "owner", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)
