"""Checks whether this host has what a fleet needs, without opening the store and without loading its library."""

from __future__ import annotations

import os
import stat
from importlib.util import find_spec
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult

from pagetier.tiers.base import TierError
from pagetier.tiers.fleet.fleet_options import check_options, read_key
from pagetier.tiers.worker_protocol import FleetOptions

_LIBRARIES: Final = {"s3": ("obstore", "s3"), "mooncake": ("mooncake", "mooncake")}


class FolderAwayError(TierError):
    """The fleet's folder is not there, as while its file system is not mounted."""


def check_host(options: FleetOptions) -> None:
    """Checks the library, the folder and the key file of a fleet.

    Raises:
        TierError: What an administrator must change.
    """
    parts = check_options(options)
    if options.key_file:
        read_key(options.key_file)
        _require_library("remote.key_file", "cryptography", "fleet-key")
    if parts.scheme in _LIBRARIES:
        _require_library(f"{parts.scheme}://", *_LIBRARIES[parts.scheme])
    elif parts.scheme == "file":
        check_folder(Path(parts.path))
    else:
        _require_module(parts)


def check_folder(folder: Path) -> None:
    """Raises TierError unless the folder exists, and would not if its file system were not mounted."""
    if not folder.is_dir():
        raise FolderAwayError(f"{folder} is not a folder: create it, or mount its file system")
    if os.path.ismount(folder):
        raise TierError(f"{folder} is a mount point: set remote.url to a folder in it, absent while it is not mounted")


def folder_warning(options: FleetOptions) -> str:
    """Returns what an administrator should change about the rights of a fleet's folder, "" if nothing."""
    parts = check_options(options)
    if parts.scheme != "file" or not Path(parts.path).stat().st_mode & stat.S_IWOTH:
        return ""
    risk = "delete" if options.key_file else "read, forge and delete"
    return f"all users may {risk} pages in {parts.path}: chgrp it to a group of all hosts' users and chmod 2770 it"


def _require_library(what: str, library: str, extra: str) -> None:
    if find_spec(library) is None:
        raise TierError(f"{what} needs {library}: pip install 'pagetier[{extra}]'")


def _require_module(parts: SplitResult) -> None:
    module, _, name = parts.netloc.partition(":")
    if not name:
        raise TierError(f"python://{parts.netloc} names no class: write python://MODULE:CLASS")
    if find_spec(module.partition(".")[0]) is None:  # the rest of a dotted name cannot be found without an import
        raise TierError(f"python://{parts.netloc}: there is no module {module}: install it, or set PYTHONPATH")
