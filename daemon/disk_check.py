"""Checks the folders of the disk tier, for `pagetierd --check`. Creates nothing in them."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from pagetier.daemon.config.disk_options import DeviceOptions
from pagetier.daemon.config.validation import beyond_its_disk
from pagetier.daemon.host.disk_space import space_seen
from pagetier.daemon.host.folders import existing_folder, why_no_folder
from pagetier.daemon.host.host import Host
from pagetier.shm.segment_files import user_name
from pagetier.tiers.base import TierError
from pagetier.tiers.disk_folder import folder_remedy


def disk_warnings(disk: DeviceOptions, host: Host, in_use: Collection[str]) -> Iterator[str]:
    """Yields why a start would have no disk tier, and why the tier would not get its size.

    Args:
        disk: A device of the disk tier.
        host: This host.
        in_use: The folders that the running daemon of this name has opened.
    """
    if why := why_no_folder(disk.path, host.mounts()):
        yield f"warning: on this host {why}: set another disk.path"
        return
    there = existing_folder(disk.path)
    if not os.access(there, os.W_OK | os.X_OK):
        remedy = folder_remedy(disk.path) or "its file system is read-only"
        yield f"warning: no disk tier: {disk.path} cannot be used; {remedy}"
    elif str(disk.path) not in in_use and there == disk.path:
        yield from _folder_warnings(disk.path)
    if too_large := beyond_its_disk(disk, space_seen(disk.path, host).room):
        yield f"warning: on this host {too_large}"


def _folder_warnings(folder: Path) -> Iterator[str]:
    owner = folder.stat().st_uid
    if owner and not os.geteuid():  # an administrator may check the configuration of a service
        user = user_name(owner)
        yield f"note: {folder} belongs to user {user}: a daemon of that user can use it, one of root cannot"
        return
    if why := _why_refused(folder):
        yield f"warning: no disk tier: {why}"


def _why_refused(folder: Path) -> str:
    """Returns why a worker would refuse an existing folder, in its words; or ""."""
    from pagetier.tiers.disk.file_system import check_user
    from pagetier.tiers.disk.recovery import read_state
    from pagetier.tiers.disk.store_folder import environments_there

    with suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError):
        try:
            check_user(folder, (folder.lstat(), folder.stat()))
            if _is_locked(folder):
                return f"{folder} is in use by another daemon: stop it, or set another disk.path"
            if read_state(folder) is None:
                environments_there(folder)
            _check_files(folder)
        except TierError as error:
            return str(error)
        except PermissionError as error:
            return f"{folder} cannot be used by the disk tier: {error.strerror}; {folder_remedy(folder)}"
    return ""


def _check_files(folder: Path) -> None:
    """Raises PermissionError for what a tier of another user, such as root, has left in a folder of this one."""
    from pagetier.tiers.disk.file_system import OWNER, numbered_folders

    for path in (folder / OWNER, *numbered_folders(folder)):
        needed = os.R_OK | os.W_OK | (os.X_OK if path.is_dir() else 0)
        if path.exists() and not os.access(path, needed):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def _is_locked(folder: Path) -> bool:
    """Returns whether a worker uses a folder. Takes its lock, shared, for a moment."""
    from pagetier.tiers.disk.file_system import OWNER

    try:
        file = os.open(folder / OWNER, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False
