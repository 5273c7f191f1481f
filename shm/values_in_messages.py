"""Values as a configuration file spells them, for messages."""

from __future__ import annotations

import json
import re
from typing import Final

_BARE: Final = re.compile("[A-Za-z0-9_-]+")
_MOST: Final = 200


def shown(raw: object) -> str:
    """A raw value as a message shows it: strings quoted, long ones cut."""
    try:
        text = _spelled(raw)
    except (ValueError, RecursionError):  # thousands of digits, or of tables in each other
        return "what is too long to be shown"
    return text if len(text) <= _MOST else text[: _MOST - 3] + "..."


def _spelled(raw: object) -> str:
    if isinstance(raw, bool):
        return str(raw).lower()
    if isinstance(raw, str):
        return json.dumps(raw, ensure_ascii=False)
    if isinstance(raw, list):
        return f"[{', '.join(map(_spelled, raw))}]"
    if isinstance(raw, dict):
        return f"{{{', '.join(f'{_key(key)} = {_spelled(value)}' for key, value in raw.items())}}}"
    return str(raw)  # numbers, dates and times: as TOML has them


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else json.dumps(key, ensure_ascii=False)
