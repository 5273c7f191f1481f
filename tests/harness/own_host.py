"""Hides the host from the tests of this process and from all processes that they start.

The environment is cleaned everywhere. Where it is permitted, namespaces of mounts and of IPC, and for an ordinary user
one of users, give the suite a /tmp, a /dev/shm and a /run of its own, and no /etc/pagetier. What this Python needs of
/tmp stays there.
"""

from __future__ import annotations

import ctypes
import locale
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
_HOME: Final = ROOT / ".cache/home"
_OF_THE_HOST: Final = (
    *("PAGETIER", "XDG_", "LC_", "LANGUAGE", "NOTIFY_", "WATCHDOG_", "JOURNAL_", "LISTEN_", "AWS_"),
    *("PYTHONUNBUFFERED", "PYTHONHASHSEED", "PYTHONWARNINGS"),
    *("GIT_ALTERNATE_", "GIT_COMMON_DIR", "GIT_DIR", "GIT_GRAFT_", "GIT_IMPLICIT_", "GIT_INDEX_", "GIT_NAMESPACE"),
    *("GIT_OBJECT_", "GIT_PREFIX", "GIT_SHALLOW_", "GIT_WORK_TREE"),  # by these a hook leads git to its repository
)
_KEPT: Final = {"GIT_CONFIG_GLOBAL": ".gitconfig", "PIP_CONFIG_FILE": ".config/pip/pip.conf"}
"""Settings of tools that the tests use, such as the package index of this host, which are in its user's home."""
_VARIABLE: Final = "TEST_HOST"
_HIDDEN: Final = "hidden by namespaces"
_VISIBLE: Final = "visible, because namespaces are refused here"
_ENOUGH: Final = 4 << 30
"""The free bytes from which on /tmp, or else /var/tmp, has the temporary files: less leaves the clone's file system."""
_REMOVAL: Final = 'exec 3<&0; (cat <&3; for pause in 0 1 5 30; do sleep $pause; rm -rf "$0" && break; done) &'
_NEWNS, _NEWIPC, _NEWUSER = 0x00020000, 0x08000000, 0x10000000
_MS_BIND, _MS_REC, _MS_PRIVATE = 0x1000, 0x4000, 1 << 18
_CAPABILITIES_3: Final = 0x20080522


def have_own_host() -> None:
    """Moves this process, which has one thread, to a host of its own."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    places = [*needed_in_tmp(), *_in_tmp(cache / "pagetier")]
    _clean_environment()
    temporary = _own_temporary()
    os.environ[_VARIABLE] = _VISIBLE
    if _may_enter(temporary, places):
        _enter(temporary, places)
        os.environ.pop("TMPDIR", None)
        os.environ[_VARIABLE] = _HIDDEN
    elif not temporary.is_relative_to("/tmp"):
        os.environ["TMPDIR"] = str(temporary)
    tempfile.tempdir = None  # is found again


def needed_in_tmp() -> list[Path]:
    """Returns what this clone and its Python, with their packages, need of /tmp."""
    return _in_tmp(ROOT, *map(Path, (sys.prefix, sys.base_prefix, *sys.path)))


def _in_tmp(*paths: Path) -> list[Path]:
    """Returns the paths that are in /tmp, or lead there, and exist."""
    found = {form for path in paths if path.exists() for form in (path.absolute(), path.resolve())}
    return sorted(path for path in found if Path("/tmp") in path.parents)


def is_hidden() -> bool:
    """Returns whether namespaces hide the host's files from this process."""
    return report() == _HIDDEN


def report() -> str:
    """Returns what this process can see of the host."""
    return os.environ.get(_VARIABLE, _VISIBLE)


def have_own_mounts() -> None:
    """Moves the calling thread, and its later threads and children, to a /dev/shm and to mounts of their own.

    A mount namespace is a copy of the one that it is made in, and keeps the file systems of that one in use after they
    are unmounted there. A test that mounts a file again then receives the same file system, with the state that it had.
    Changes nothing where that is not permitted: such a user cannot mount anything either.
    """
    with suppress(OSError):
        _unshare(_NEWNS)
        _mount("none", "/", flags=_MS_REC | _MS_PRIVATE)
        _mount_memory("/dev/shm", 0o1777)


def _clean_environment() -> None:
    home = Path.home()
    for name in [name for name in os.environ if name.startswith(_OF_THE_HOST)]:
        del os.environ[name]
    for name, path in _KEPT.items():
        if (home / path).exists():
            os.environ.setdefault(name, str(home / path))
    _HOME.mkdir(parents=True, exist_ok=True)
    # pytest names its temporary folder after the user, and a socket's path has at most 107 bytes.
    os.environ |= {"HOME": str(_HOME), "LANG": "C.UTF-8", "LOGNAME": str(os.geteuid())}
    locale.setlocale(locale.LC_ALL, "")
    os.umask(0o022)


def _own_temporary() -> Path:
    """Makes a folder that is removed when this process has ended, also if it was killed."""
    places = [path for path in (Path("/tmp"), Path("/var/tmp")) if path.is_dir()]
    place = next((path for path in places if shutil.disk_usage(path).free >= _ENOUGH), _HOME.parent)
    folder = Path(tempfile.mkdtemp(dir=place, prefix="suite-"))
    folder.chmod(0o1777)
    _remove_after_the_end(folder)
    return folder


def _remove_after_the_end(folder: Path) -> None:
    """Starts a process that waits for the end of this one and of its forks, and then removes the folder.

    It is no child of this process and in no namespace of it. Processes that were killed just now may still write.
    """
    waiting, _held_open = os.pipe()
    nowhere = subprocess.DEVNULL
    command = ("sh", "-c", _REMOVAL, folder)
    subprocess.run(command, stdin=waiting, stdout=nowhere, stderr=nowhere, start_new_session=True, check=True)
    os.close(waiting)


def _may_enter(temporary: Path, places: list[Path]) -> bool:
    """Tries all of it in a child: some hosts permit a namespace but no mounts in it."""
    if (child := os.fork()) == 0:
        with suppress(OSError):
            _enter(temporary, places)
            os._exit(0)
        os._exit(1)
    return os.waitpid(child, 0)[1] == 0


def _enter(temporary: Path, places: list[Path]) -> None:
    user, group = os.geteuid(), os.getegid()
    _unshare(_NEWNS | _NEWIPC | (_NEWUSER if user else 0))
    if user:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    _mount("none", "/", flags=_MS_REC | _MS_PRIVATE)
    _replace_tmp(temporary, places)
    _mount_memory("/dev/shm", 0o1777)
    _replace_run(0o555 if user else 0o755)
    if Path("/etc/pagetier").is_dir():
        _mount_memory("/etc/pagetier", 0o755)
    if user:
        _drop_capabilities()


def _replace_tmp(temporary: Path, places: list[Path]) -> None:
    """Mounts a folder at /tmp, and in it what stays visible of the host's."""
    opened = {path: os.open(path, os.O_PATH) for path in places}
    _mount(str(temporary), "/tmp", flags=_MS_BIND)
    for path, beneath in opened.items():
        _bind(f"/proc/self/fd/{beneath}", path)
        os.close(beneath)


def _replace_run(mode: int) -> None:
    """Mounts a /run with all that is in the host's, as programs need it, but what belongs to pagetier."""
    beneath = os.open("/run", os.O_RDONLY)
    _mount_memory("/run", mode)
    for entry in [entry for entry in os.scandir(beneath) if not entry.name.startswith("pagetier")]:
        place = Path("/run") / entry.name
        if entry.is_symlink():
            place.symlink_to(os.readlink(entry.name, dir_fd=beneath))
            continue
        _bind(f"/proc/self/fd/{beneath}/{entry.name}", place)
    os.close(beneath)


def _bind(source: str, place: Path) -> None:
    """Mounts a folder or a file at a place, and makes the place if it is absent."""
    if Path(source).is_dir():
        place.mkdir(parents=True, exist_ok=True)
    elif not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()
    _mount(source, str(place), flags=_MS_BIND | _MS_REC)


def _mount_memory(place: str, mode: int) -> None:
    _mount("tmpfs", place, "tmpfs", options=f"mode={mode:o}")


def _mount(source: str, place: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(source.encode(), place.encode(), kind.encode(), ctypes.c_ulong(flags), options.encode()):
        raise OSError(ctypes.get_errno(), f"mount {place}")


def _unshare(flags: int) -> None:
    if ctypes.CDLL(None, use_errno=True).unshare(flags):
        raise OSError(ctypes.get_errno(), "unshare")


def _drop_capabilities() -> None:
    """Returns to the rights of an ordinary user, for whom the modes of files count."""
    header, none = (ctypes.c_uint32 * 2)(_CAPABILITIES_3, 0), (ctypes.c_uint32 * 6)()
    if ctypes.CDLL(None, use_errno=True).capset(header, none):
        raise OSError(ctypes.get_errno(), "capset")
