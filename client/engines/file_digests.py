"""SHA-256 digests of whole files, remembered in the user's cache folder by device, inode, size and times."""

from __future__ import annotations

import fcntl
import logging
import os
import re
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Final

import msgspec

log = logging.getLogger("pagetier.client")

_BLOB: Final = re.compile("[0-9a-f]{64}")
_CHUNK_BYTES: Final = 4 << 20
_MOST_RECORDS: Final = 4096
_SETTLED_NS: Final = 2_000_000_000  # a file may change again within the same tick of its file system's clock


class ChangedError(Exception):
    """A file was changed while it was read."""


class FileRecord(msgspec.Struct, frozen=True, array_like=True):
    """What a file was when its digest was determined: its size, its times in nanoseconds, and the digest."""

    size: int
    modified: int
    changed: int
    digest: str

    def matches(self, status: os.stat_result) -> bool:
        """Returns whether the file is still the same."""
        return (self.size, self.modified, self.changed) == (status.st_size, status.st_mtime_ns, status.st_ctime_ns)


Records = dict[str, FileRecord]


class FileDigests:
    """Determines digests of files. Several processes may use one memory; one of them at a time reads files.

    A file of the hub's cache has the SHA-256 of its content as its name, which is believed unless the file was changed
    since its name was first seen.

    Args:
        memory: The file that remembers digests. It need not exist, and without write access nothing is remembered. It
            is ignored if it belongs to another user, or if others may write to it.
    """

    def __init__(self, memory: Path) -> None:
        self._memory = memory

    def unread_bytes(self, files: Sequence[Path]) -> int:
        """Returns how many bytes must be read to determine the digests of these files."""
        records = self._read_memory()
        return sum(file.stat().st_size for file in files if _remembered(file, records) is None)

    def digests_of(self, files: Sequence[Path]) -> list[str]:
        """Returns the digests of files, and reads those that are not remembered.

        Raises:
            OSError: A file cannot be read.
            ChangedError: A file was changed while it was read.
        """
        if not self.unread_bytes(files):
            return self._digests(files)
        with self._lock():  # an engine that starts at the same time finds what this one has read
            return self._digests(files)

    def _digests(self, files: Sequence[Path]) -> list[str]:
        digests = []
        for file in files:
            records = self._read_memory()
            remembered = _remembered(file, records)
            record = remembered or _read(file)
            if records.get(_key(file.stat())) != record:
                self._remember(file, record)
            digests.append(record.digest)
        return digests

    def _read_memory(self) -> Records:
        """Returns what is remembered. A file that another user could have written is not believed."""
        try:
            with self._memory.open("rb") as file:
                status = os.fstat(file.fileno())
                if status.st_uid not in (0, os.geteuid()) or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                    return {}
                return msgspec.json.decode(file.read(), type=Records)
        except (OSError, msgspec.MsgspecError):
            return {}

    def _remember(self, file: Path, record: FileRecord) -> None:
        if time.time_ns() - max(record.modified, record.changed) < _SETTLED_NS:
            return
        records = self._read_memory()
        records.pop(key := _key(file.stat()), None)
        records[key] = record
        latest = dict(list(records.items())[-_MOST_RECORDS:])
        try:
            self._replace_memory(latest)
        except OSError as error:
            log.debug("cannot remember digests of files in %s: %s", self._memory, error)

    def _replace_memory(self, records: Mapping[str, FileRecord]) -> None:
        self._memory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        unfinished = self._memory.with_name(f".{self._memory.name}.{os.getpid()}")
        unfinished.write_bytes(msgspec.json.encode(records))
        unfinished.chmod(0o600)
        unfinished.replace(self._memory)

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """Holds the memory's lock, which ends with the process; does nothing if there can be no lock."""
        descriptor = -1
        with suppress(OSError):
            self._memory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(self._memory.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        try:
            yield
        finally:
            if descriptor >= 0:
                os.close(descriptor)


def user_cache(environment: Mapping[str, str] = os.environ) -> Path:
    """Returns the user's cache folder, as the hub's libraries find it; without a home a path that cannot exist."""
    given = Path(environment.get("XDG_CACHE_HOME", ""))
    try:
        return given if given.is_absolute() else Path("~/.cache").expanduser()
    except RuntimeError:
        return Path(os.devnull)


def digest_of_setting(path: str | None) -> str:
    """Returns the digest of a small file that a setting names, or says that it cannot be read; "" without a setting.

    An engine may run without the file that its setting names. Nothing is remembered, so that no start waits for another
    engine, which may be reading its weights.
    """
    try:
        return sha256(Path(path).read_bytes()).hexdigest() if path else ""
    except OSError:
        return f"unread {path}"


def user_memory(environment: Mapping[str, str] = os.environ) -> Path:
    """Returns the file that remembers digests for this user."""
    return user_cache(environment) / "pagetier" / "files.json"


def blob_name(file: Path) -> str | None:
    """Returns the SHA-256 that a file of the hub's cache has as its name; None for other files."""
    target = file.resolve()
    return target.name if target.parent.name == "blobs" and _BLOB.fullmatch(target.name) else None


def is_blob(file: Path) -> bool:
    """Returns whether a file belongs to the hub's cache, whose files are named by their content and never changed."""
    return file.is_symlink() and file.resolve().parent.name == "blobs"


def _remembered(file: Path, records: Mapping[str, FileRecord]) -> FileRecord | None:
    """Returns what is known of a file without reading it."""
    status = file.stat()
    record, name = records.get(_key(status)), blob_name(file)
    if record is None:
        return _record(status, name) if name else None
    return record if record.matches(status) else None


def _key(status: os.stat_result) -> str:
    return f"{status.st_dev}:{status.st_ino}"


def _record(status: os.stat_result, digest: str) -> FileRecord:
    return FileRecord(status.st_size, status.st_mtime_ns, status.st_ctime_ns, digest)


def _read(file: Path) -> FileRecord:
    """Reads a whole file. hashlib releases Python's lock for each chunk."""
    digest = sha256()
    with file.open("rb", buffering=0) as content:
        before = os.fstat(content.fileno())
        buffer = bytearray(_CHUNK_BYTES)
        while count := content.readinto(buffer):
            digest.update(memoryview(buffer)[:count])
        record = _record(before, digest.hexdigest())
        if not record.matches(os.fstat(content.fileno())):
            raise ChangedError(f"{file} was changed while it was read")
    return record
