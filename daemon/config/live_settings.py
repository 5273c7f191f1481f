"""The configuration in force, of which some settings change while engines run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from pagetier.daemon.config.disk_capacity import capacity_notes
from pagetier.daemon.config.fields import Field, fields, replaced, value_of
from pagetier.daemon.config.loader import ConfigError, with_changes
from pagetier.daemon.config.schema import Config
from pagetier.daemon.config.validation import wrong_disk_size
from pagetier.shm.units import parse_size

AT_ONCE: Final = frozenset(
    {
        "access.authorize_by",
        "access.users",
        "access.groups",
        "access.watch_users",
        "access.watch_groups",
        "arena.process_share",
        "disk.path",
        "disk.size",
        "evict.free",
        "evict.keep_share",
        "evict.policy",
        "log.level",
        "quota",
        "remote.ask_timeout",
        "remote.rate",
        "remote.write",
    }
)
RESIZABLE: Final = ("disk.size", "evict.free")
WITH_NEW_MEMORY: Final = frozenset({"arena.size", "arena.frame_size", "index.entries"})
"""The settings of which a restart is refused while memory has pages: it keeps the memory."""
_WITH_A_RESTART: Final = "only a restart of the daemon adds or removes a disk tier"


class Changes(msgspec.Struct, frozen=True):
    """Settings that a reload or resize changed (`done`, with their values), and those that need a restart (`later`)."""

    done: tuple[str, ...] = ()
    later: tuple[str, ...] = ()

    def __str__(self) -> str:
        done = f"changed: {', '.join(self.done)}" if self.done else "nothing changed"
        restart = ", ".join(path for path in self.later if path not in WITH_NEW_MEMORY)
        stop = ", ".join(path for path in self.later if path in WITH_NEW_MEMORY)
        later = (restart and f"only a restart changes {restart}", stop and f"only a stop and a start change {stop}")
        return "; ".join(filter(None, (done, *later)))


class LiveSettings:
    """The configuration that the daemon runs by, and the functions to call after a change. For the loop's thread.

    Attributes:
        config: The configuration in force.
        sources: The source of each setting that was given, by `Field.path`.
        notes: Why a setting has no effect now, by `Field.path`.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self.sources: Mapping[str, str] = {}
        self.notes: Mapping[str, str] = {}
        self._asked = config  # the configuration that was read last; parts of it may wait for a restart
        self._resized: set[str] = set()
        self._followers: list[Callable[[Config], None]] = []

    def follow(self, follower: Callable[[Config], None]) -> None:
        """Registers a function that is called with the whole configuration after each change."""
        self._followers.append(follower)

    def take(self, wanted: Config) -> Changes:
        """Puts another configuration in force, as far as that is possible without a restart.

        Returns:
            The settings that changed and those that wait for a restart.

        Raises ConfigError, and changes nothing, if the new values do not fit those that stay in force.
        """
        changes = self._put_in_force(wanted)
        self._asked, self._resized = wanted, set()
        return changes

    def _put_in_force(self, wanted: Config) -> Changes:
        old = self.config
        different = [field for field in fields() if value_of(old, field) != value_of(wanted, field)]
        done = [field for field in different if _changes_at_once(field.path, old, wanted)]
        if done:
            self.config = _require_valid_disk_size(self.beside(wanted))
            for follower in self._followers:
                follower(self.config)
        return Changes(
            tuple(_as_changed(field, self.config, self.notes) for field in done),
            tuple(field.path for field in different if field not in done),
        )

    def beside(self, wanted: Config) -> Config:
        """Returns the configuration that `wanted` would put in force without a restart. It is not validated."""
        now = [field for field in fields() if _changes_at_once(field.path, self.config, wanted)]
        return replaced(self.config, {field.path: value_of(wanted, field) for field in now})

    def resize(self, texts: Mapping[str, str]) -> Changes:
        """Changes sizes until the configuration is loaded again.

        Returns:
            The settings that changed.

        Raises:
            ConfigError: A setting cannot be resized, or its value is invalid.
        """
        wrong = [path for path in texts if path not in RESIZABLE]
        if wrong:
            raise ConfigError(f"{', '.join(wrong)}: cannot be resized; only {', '.join(RESIZABLE)} can")
        if self.config.disk.size and _is_zero(texts.get("disk.size", "")):
            raise ConfigError(f"disk.size: {_WITH_A_RESTART}")
        if not self.config.disk.size and "disk.size" in texts:
            raise ConfigError(f"disk.size: {_WITH_A_RESTART}")
        wanted = with_changes(self.config, texts, "resize")
        if wanted.disk.size != self.config.disk.size and not _changes_at_once("disk.size", self.config, wanted):
            raise ConfigError(f"disk.size: {_WITH_A_RESTART}")
        changes = self._put_in_force(wanted)
        self._resized |= texts.keys()
        return changes

    def described(self) -> list[tuple[str, str, str]]:
        """Returns for each setting its name, its value as a configuration has it, and its source."""
        values = [(field, field.setting.show(value_of(self.config, field))) for field in fields()]
        return [(field.path, value, self._source(field) + self._note(field)) for field, value in values]

    def _note(self, field: Field) -> str:
        return f"; {self.notes[field.path]}" if field.path in self.notes else ""

    def _source(self, field: Field) -> str:
        if field.path in self._resized:
            return "pagetier resize"
        location = self.sources.get(field.path, "default")
        asked = value_of(self._asked, field)
        if asked == value_of(self.config, field):
            return location
        when = "a stop and a start" if field.path in WITH_NEW_MEMORY else "a restart"
        return f"the start of this daemon; {field.setting.show(asked) or '(none)'} after {when} ({location})"


def _as_changed(field: Field, config: Config, notes: Mapping[str, str]) -> str:
    """Returns a setting with its value in force, with the frames that fit if it is a cap, and with its note."""
    note = capacity_notes(config).get(field.path) or notes.get(field.path)
    value = field.setting.show(value_of(config, field)) or "(none)"
    return f"{field.path} = {value}" + (f" ({note})" if note else "")


def _is_zero(size: str) -> bool:
    try:
        return parse_size(size) == 0
    except ValueError:
        return False


def _require_valid_disk_size(config: Config) -> Config:
    """Returns the configuration. Raises ConfigError if its disk size does not fit settings that need a restart."""
    if wrong := wrong_disk_size(config):
        raise ConfigError(f"disk.size {wrong}; settings that need a restart keep their values until then")
    return config


def _changes_at_once(path: str, old: Config, wanted: Config) -> bool:
    if path in ("disk.path", "disk.size"):
        return bool(old.disk.size and wanted.disk.size)
    return path in AT_ONCE
