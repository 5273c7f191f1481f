"""Reads the bearer token that callers of an HTTP port must send."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Final

from pagetier.daemon.config.loader import ConfigError, read_text

_TOKEN: Final = re.compile(r"[!-~]{16,512}")
_REMEDY: Final = "`openssl rand -hex 32` makes one"


def read_token(path: Path | None) -> str:
    """Returns the token in a file; "" for no file.

    Raises:
        ConfigError: The file cannot be read, is open to other users, or has no token.
    """
    if path is None:
        return ""
    try:
        text = read_text(path).strip()
    except ConfigError as error:
        raise ConfigError(f"http.token_file: {error}; {_REMEDY}") from error
    if stat.S_IMODE(os.stat(path).st_mode) & (stat.S_IRWXG | stat.S_IRWXO):  # noqa: PTH116  follows links
        raise ConfigError(f"http.token_file: {path} is open to other users: chmod 600 it")
    if not _TOKEN.fullmatch(text):
        raise ConfigError(f"http.token_file: {path} has no token of 16 to 512 visible ASCII characters: {_REMEDY}")
    return text
