"""The variable PAGETIER, which turns pagetier on in an engine that is started without a flag for it.

    PAGETIER=1 vllm serve MODEL
    PAGETIER="mode=load disk_timeout=1s" sglang serve --model-path MODEL

`0`, `off`, `no`, `false` and an empty value mean off, and `1`, `on`, `yes` and `true` mean on. Words `NAME=VALUE` turn
it on, too: they are the settings of vLLM's connector or of SGLang's linker. What excludes pagetier, an unknown word and
an exception cost one line in the engine's log (log_no_effect), and the engine starts as without the variable.

The doors are vllm/plugin.py and sglang/plugin.py: the engines call them through their entry points.
"""

from __future__ import annotations

import logging
import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

import msgspec

from pagetier.shm.errors import PagetierError
from pagetier.shm.units import parse_duration

VARIABLE: Final = "PAGETIER"
"""The variable's name. The daemon does not read it: names of its own variables begin with PAGETIER_."""

_OFF: Final = frozenset(("", "0", "off", "no", "false"))
_ON: Final = frozenset(("1", "on", "yes", "true"))
_SHORT: Final = {"mode": {"load": "load_only", "save": "save_only"}}
_BARE: Final = re.compile(r"[\w=./:+-]+")
_LISTED: Final = re.compile(r"[,;]\s*\w+=")
_SHOWN: Final = 500
_LOGGED_BY: Final = "_PAGETIER_LOGGED_BY"  # has the number of the process that logged that the variable has no effect
_OWN: Final = "switch"  # the setting that records the variable's value; users do not set it

_Reader = Callable[[str], Any]


def switched_on() -> str:
    """Returns the value of the variable, "" if it means off or is not set."""
    value = os.environ.get(VARIABLE, "").strip()
    return "" if value.lower() in _OFF else value


def settings_of(value: str, kind: type[msgspec.Struct]) -> dict[str, Any]:
    """Returns the settings in the variable's value, as in the engine's own option.

    Args:
        value: The value, which means on.
        kind: The settings of the engine's connector or linker.

    Raises:
        ValueError: Words or values are unknown. The message names all of them, and what is known.
    """
    types = {name: given for name, given in get_type_hints(kind).items() if name in kind.__struct_fields__}
    del types[_OWN]
    settings: dict[str, Any] = {}
    unknown, wrong = list[str](), list[str]()
    words = _words(value)
    if why := _contradiction(words):
        raise ValueError(why)
    for word in words:
        name, equals, text = word.partition("=")
        if not equals and word.lower() in _ON:
            continue
        if name not in types:
            unknown.append(f'"{word}"')
            continue
        try:
            settings[name] = _read(name, text, types[name])
        except ValueError as error:
            wrong.append(str(error))
    if unknown or wrong:
        raise ValueError("; ".join((*wrong, *_unknown(unknown, types))))
    return settings | {_OWN: value}


def _unknown(words: Sequence[str], known: Iterable[str]) -> Iterator[str]:
    if words:
        verb = "is" if len(words) == 1 else "are"
        use = f"set it to 1, 0, or NAME=VALUE, where NAME is one of {', '.join(known)}"
        yield f"{' and '.join(words)} {verb} unknown: {use}"


def _contradiction(words: Sequence[str]) -> str:
    """Returns which word does not go with the others, or ""."""
    names = [word.partition("=")[0].lower() for word in words]
    if off := next((name for name in names if name in _OFF), ""):
        return f'"{off}" turns it off, and has no settings beside it: leave out one of both'
    twice = next((name for name in names if names.count(name) > 1), "")
    return f'"{twice}" is there twice' if twice else ""


def _words(value: str) -> list[str]:
    try:
        return shlex.split(value)
    except ValueError as error:
        raise ValueError(f"a quotation mark is missing ({error})") from error


def _read(name: str, text: str, kind: Any) -> Any:
    readers: Mapping[Any, _Reader] = {float: parse_duration, int: int, str: str}
    read = partial(_one_of, name, kind) if get_origin(kind) is Literal else readers[kind]
    try:
        return read(text)
    except ValueError as error:
        hint = "; separate settings by spaces" if _LISTED.search(text) else ""
        raise ValueError(f"{name}={text}: {error}{hint}") from error


def _one_of(name: str, kind: Any, text: str) -> str:
    short, known = _SHORT.get(name, {}), get_args(kind)
    if (found := short.get(text, text)) not in known:
        raise ValueError(f"it must be one of {', '.join((*known, *short))}")
    return found


def shown(value: str) -> str:
    """Returns the variable with its value as a shell takes it."""
    return f"{VARIABLE}={value}" if _BARE.fullmatch(value) else f'{VARIABLE}="{value}"'


def log_no_effect(log: logging.Logger, value: str, error: Exception) -> None:
    """Logs why an engine starts without what the variable asks for. The trace of an exception is in the debug log.

    The processes that this one starts, such as those of --api-server-count, read the same flags: they log it for
    debugging only, as they inherit the number of this process.
    """
    foreseen = isinstance(error, (PagetierError, ValueError))
    reason = " ".join((str(error) if foreseen else repr(error)).split())
    own = str(os.getpid())
    level = logging.WARNING if os.environ.setdefault(_LOGGED_BY, own) == own else logging.DEBUG
    log.log(level, "%s has no effect: %s", shown(value), reason[:_SHOWN])
    log.debug("%s has no effect because of this exception", VARIABLE, exc_info=error)


class SettingsOrigin(msgspec.Struct, frozen=True):
    """Where an engine's settings for pagetier are from.

    Attributes:
        option: The engine's option that has them unless the variable turned pagetier on.
        switch: The value of the variable if it did, else "".
    """

    option: str
    switch: str = ""

    @property
    def place(self) -> str:
        """Where a user sets them."""
        return VARIABLE if self.switch else self.option

    @property
    def remark(self) -> str:
        """What the log says of it beside an attachment."""
        return f"; {shown(self.switch)} turned it on, {VARIABLE}=0 turns it off" if self.switch else ""
