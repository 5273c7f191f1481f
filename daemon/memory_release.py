"""`pagetierd --release-memory`: releases memory that an earlier daemon left, even if the configuration is invalid."""

from __future__ import annotations

import logging
import os
import pwd
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pagetier.daemon.config.fields import fields
from pagetier.daemon.config.loader import FILE_VARIABLE, ConfigError, NoTextFileError, load, text_of
from pagetier.daemon.config.mistakes import log_each
from pagetier.daemon.config.value_types import NAME
from pagetier.shm._core import ShmError
from pagetier.shm.log_format import event
from pagetier.shm.removal import MemoryRelease, release_memory
from pagetier.shm.segment_files import KINDS, owner_of

log = logging.getLogger("pagetierd")

_NAME: Final = re.compile(rf"""\s*name\s*=\s*["']({NAME.pattern})["']""")


def release_as_owner(name: str) -> None:
    """Releases what an earlier daemon left under a name, as the user that owns it.

    Root becomes that user for good, so that another user's memory is never parsed with root's rights.

    Raises:
        ShmError: A daemon uses the memory, or it cannot be released.
        OSError: It cannot be opened.
    """
    owner = next((uid for kind in KINDS if (uid := owner_of(name, kind)) is not None), None)
    if os.geteuid() == 0 and owner not in (0, None):
        _become(owner)
    outcome = release_memory(name)
    if outcome is MemoryRelease.IN_USE:
        raise ShmError(f"{name}: {outcome.value}")
    log.info("%s: %s", name, outcome.value, extra=event("memory_released"))


def name_meant(path: Path | None, env: Mapping[str, str], flags: Mapping[str, str | None]) -> str:
    """Returns the name of the segments, even if other settings are invalid: the memory must be released then, too.

    Raises:
        ConfigError: The name itself is invalid, so that no daemon can have had it.
    """
    try:
        return load(path, env, flags).name
    except ConfigError as error:
        file = path or (Path(env[FILE_VARIABLE]) if env.get(FILE_VARIABLE) else None)
        name = flags.get("name") or env.get("PAGETIER_NAME") or _name_in(file) or _usual_name()
        if not NAME.fullmatch(name):
            raise
        log_each(log.warning, f"{error}; releasing the memory of the daemon named {name}", "memory_released")
        return name


def _name_in(file: Path | None) -> str | None:
    """Returns the name that the lines before the first table set, or None."""
    try:
        lines = text_of(file).splitlines() if file is not None else []
    except (NoTextFileError, OSError, UnicodeDecodeError):
        return None
    for line in lines:
        if line.lstrip().startswith("["):
            return None
        if found := _NAME.match(line):
            return found[1]
    return None


def _usual_name() -> str:
    return str(next(field.default for field in fields() if field.path == "name"))


def _become(user: int) -> None:
    try:
        group = pwd.getpwuid(user).pw_gid
    except KeyError:
        group = user
    os.setgroups([])
    os.setgid(group)
    os.setuid(user)
