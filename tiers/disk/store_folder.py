"""Opens a store's folder: trusted environments are kept, others are rebuilt empty, and one line reports it."""

from __future__ import annotations

import contextlib
import errno
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import lmdb
import msgspec

from pagetier.shm import clock
from pagetier.shm.failpoints import point
from pagetier.shm.protocol import BUILD
from pagetier.tiers.base import DoubtError, TierError
from pagetier.tiers.capacity import TRANSACTION_BYTES, Shape, shape_of
from pagetier.tiers.disk import file_system, recovery, saved_lookups
from pagetier.tiers.disk.environment import Environment
from pagetier.tiers.disk.file_format import COMPRESSED_FORMAT, READABLE, About
from pagetier.tiers.disk.recovery import Journal, State
from pagetier.tiers.disk.resize import EnvironmentResize

_NEW: Final = "new"
_OURS: Final = {"owner", "state", "state.tmp", saved_lookups.NAME, saved_lookups.BESIDE, "lost+found"}


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a store.

    `cap_bytes` limits all files together; `kind` and `resize` are the store's; `proof_seconds` is the processor
    time that verifying an environment may take.
    """

    folder: Path
    cap_bytes: int
    frame_bytes: int
    kind: type[Environment]
    resize: type[EnvironmentResize[Any]]
    environments: int = 4
    transaction_bytes: int = TRANSACTION_BYTES
    proof_seconds: float = 30.0

    @property
    def shape(self) -> Shape:
        """The shape of each environment."""
        return shape_of(self.kind.STORE, self.cap_bytes, self.environments, self.frame_bytes, self.transaction_bytes)


class OpenedFolder(msgspec.Struct, frozen=True):
    """An opened folder. `how` is one line about its state; `note` is what an administrator should do, or ""."""

    environments: list[Environment]
    journal: Journal
    how: str
    note: str


def prepare(options: Options) -> int:
    """Returns a descriptor that keeps the folder locked while it is open; creates the folder.

    Raises:
        TierError: The size is too small for one page, or the folder cannot be used.
    """
    if not options.shape.capacity:
        raise TierError(
            f"a disk tier of {options.cap_bytes} bytes is too small for frames of {options.frame_bytes}: give it more"
        )
    with file_system.converted_errors(options.folder):
        file_system.make(options.folder)
        return file_system.own(options.folder)


def open_folder(options: Options, owner: int) -> OpenedFolder:
    """Opens the folder, which the caller has locked with prepare(), by the descriptor `owner`. Raises TierError."""
    # A file system that is mounted late hides the folder at any moment. So each step that trusts or removes an
    # environment insists on the folder that was locked: the files of the other one are nothing of this tier.
    with file_system.converted_errors(options.folder):
        state, why = _read_valid_state(options)
        if state is None or why:
            return _rebuild_empty(options, owner, f"rebuilt empty: {why}" if why else "new")
        return _reopen(options, owner, state)


def _read_valid_state(options: Options) -> tuple[State | None, str]:
    """Returns the state file's content and why it cannot be used, or "". Raises TierError for foreign files."""
    try:
        state = recovery.read_state(options.folder)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        return None, f"its state file cannot be decoded ({error})"
    if state is None:
        return None, "its state file is missing" if environments_there(options.folder) else ""
    if state.store == options.kind.STORE and (why := _other_compression(state.format, options.kind)):
        return state, why
    known = state.format if state.format in options.kind.READABLE else options.kind.FORMAT
    wanted: dict[str, object] = {"format": known, "store": options.kind.STORE}
    wanted |= {"frame_bytes": options.frame_bytes, "environments": options.environments}
    found = {name: getattr(state, name) for name in wanted}
    words = [f"{name} was {found[name]}, is {wanted[name]}" for name in wanted if found[name] != wanted[name]]
    return state, ", ".join(words).replace("_", " ")


def _other_compression(found: int, kind: type[Environment]) -> str:
    """Returns that the setting was changed, if the format is that of tiers with another one; or ""."""
    if COMPRESSED_FORMAT not in (found, kind.FORMAT) or found in kind.READABLE:
        return ""
    if found == COMPRESSED_FORMAT:
        return "compressed pages are there, and disk.compress is off"
    return "pages are not compressed there, and disk.compress is on" if found in READABLE else ""


def environments_there(folder: Path) -> bool:
    """Returns whether a folder has environments. Raises TierError if it contains files that no tier has written."""
    there = {path.name for path in file_system.numbered_folders(folder)}
    foreign = sorted({path.name for path in folder.iterdir()} - there - _OURS)
    if foreign:
        name = os.fsencode(foreign[0]).decode(errors="backslashreplace")  # the daemon is sent UTF-8
        raise TierError(f"{folder} contains other files ({name}): give the disk tier a folder of its own")
    return bool(there)


def _rebuild_empty(options: Options, owner: int, how: str) -> OpenedFolder:
    for path in list(file_system.numbered_folders(options.folder)):
        _remove(path, options, owner)
    point("opening.emptied")
    journal = Journal(options.folder, owner, _state(options))
    journal.mark_dirty()
    point("opening.marked")
    return _Opening(options, owner, journal, [_NEW] * options.environments).run(how)


def _reopen(options: Options, owner: int, state: State) -> OpenedFolder:
    # Recovery decides for each environment whether its files are kept. They are kept without verification if the host
    # did not reboot since the last change, or if everything was synced: then no commit is lost, whatever happened to
    # the processes. A file that is shorter than its meta pages promise is doubted in any case.
    began = clock.now()
    file_system.remove_copies(options.folder)
    folders = [options.folder / str(number) for number in range(options.environments)]
    short = {folder: recovery.shortened(folder) for folder in folders}
    how, doubted = state.as_left, [folder for folder in folders if short[folder]]
    unclean = state.boot != recovery.boot_id() and not state.clean
    journal = Journal(options.folder, owner, state)
    # The doubt is durable before a file is touched: a worker that dies from here on leaves it to the next one.
    if doubted and not unclean:
        journal.doubt()
    # The proof must read the disk. After a failed write the page cache has content that the disk does not have.
    if unclean:
        _forget(folders)
    proofs = _proofs(folders if unclean else doubted, options)
    doubts = [short[folder] or proof if (proof := proofs.get(folder, short[folder])) else "" for folder in folders]
    # What is not sound is removed before the journal marks the folder as trusted by this boot.
    _give_up([folder for folder, doubt in zip(folders, doubts, strict=True) if doubt], options, owner)
    if unclean:
        why = "after an unexpected failure" if state.doubted else "after an unclean host restart"
        how = f"{why}: proven sound in {clock.now() - began:.1f} s"
    if how != "as it was left" or any(doubts):
        journal.mark_dirty()
    opened = _Opening(options, owner, journal, doubts).run(how)
    for environment, folder in zip(opened.environments, folders, strict=True):
        environment.proven = folder in proofs
    return opened


def _forget(folders: Sequence[Path]) -> None:
    """Drops the files from the page cache, so that verifying them reads the disk."""
    for folder in folders:
        file_system.forget(folder / file_system.DATA)


def _give_up(folders: Sequence[Path], options: Options, owner: int) -> None:
    """Removes corrupt environments before the journal marks the folder as trusted: this process may be killed."""
    for folder in folders:
        _remove(folder, options, owner)


def _remove(folder: Path, options: Options, owner: int) -> None:
    """Removes an environment, but none that appeared with another file system."""
    file_system.insist_on_owned(owner, options.folder)
    file_system.remove_environment(folder)


def _proofs(folders: Sequence[Path], options: Options) -> dict[Path, str]:
    """Returns the result of prove() for each of the folders that can be verified."""
    provable = [folder for folder in folders if recovery.lengthened(folder, _most_bytes(folder, options))]
    return dict(zip(provable, recovery.prove(provable, options.proof_seconds), strict=True))


def _most_bytes(folder: Path, options: Options) -> int:
    """Returns the most bytes that a sound file can have; its share of the capacity may have been larger before."""
    data = folder / file_system.DATA
    there = data.stat().st_size if data.exists() else 0
    return 2 * max(there, options.shape.map_bytes)


def _state(options: Options) -> State:
    return State(
        format=options.kind.FORMAT,
        store=options.kind.STORE,
        frame_bytes=options.frame_bytes,
        environments=options.environments,
        boot="",
        clean=True,
    )


def _is_system_error(error: Exception) -> bool:
    """Returns whether the error came from the system.

    LMDB's own codes are negative; errors raised by pagetier have none.
    """
    code: int = getattr(error, "code", 0)
    return code > 0 and code != errno.EINVAL


class _Opening:
    """Opens one environment after the other. `doubts` has for each one why it is not to be trusted, or ""."""

    def __init__(self, options: Options, owner: int, journal: Journal, doubts: Sequence[str]) -> None:
        self._options = options
        self._owner = owner
        self._journal = journal
        self._doubts = list(doubts)
        self._too_long: list[str] = []
        self._lost: list[str] = []

    def run(self, how: str) -> OpenedFolder:
        environments: list[Environment] = []
        with contextlib.ExitStack() as undo:
            for number in range(self._options.environments):
                environments.append(self._open(number))
                undo.callback(environments[-1].close)
                point("opening.opened")
            undo.pop_all()
        return OpenedFolder(environments, self._journal, self._line(how), self._note(environments))

    def _open(self, number: int) -> Environment:
        folder = self._options.folder / str(number)
        file_system.insist_on_owned(self._owner, self._options.folder)
        if not self._doubts[number]:
            try:
                return self._fitted(self._environment(folder))
            except (lmdb.Error, msgspec.MsgspecError, struct.error, TypeError, UnicodeDecodeError) as error:
                if _is_system_error(error):
                    raise  # the error says nothing about the content of the files
                self._doubts[number] = f"LMDB rejects it ({error})"
                self._journal.mark_dirty()
        _remove(folder, self._options, self._owner)
        return self._environment(folder)

    def _environment(self, folder: Path) -> Environment:
        about = About(self._options.kind.FORMAT, self._options.frame_bytes, BUILD)
        environment = self._options.kind(folder, self._options.shape, about)
        if environment.about.format not in environment.READABLE or environment.about.frame_bytes != about.frame_bytes:
            environment.close()
            raise lmdb.InvalidError(f"it is of format {environment.about.format}")
        environment.reserve()
        file_system.sync_folder(folder)  # a new, synced file could still lose its name
        return environment

    def _fitted(self, environment: Environment) -> Environment:
        resize = self._options.resize(environment)
        if not resize.is_needed():
            return environment
        self._journal.mark_dirty()
        self._lost += filter(None, [resize.lost])
        try:
            why = resize.run()
        except OSError as error:
            why = str(error)
        except BaseException as error:
            environment.close()
            if isinstance(error, DoubtError):
                self._journal.distrust()
            raise
        if why:
            self._too_long.append(why)
            return environment
        environment.close()
        return self._environment(environment.folder)

    def _line(self, how: str) -> str:
        reasons = [doubt for doubt in self._doubts if doubt not in ("", _NEW)]
        if not reasons:
            return "; ".join([how, *self._lost])
        part = "" if len(reasons) == len(self._doubts) else f" in {len(reasons)} of {len(self._doubts)} parts"
        return "; ".join([f"rebuilt empty{part}: {reasons[0]}", *self._lost])

    def _note(self, environments: Sequence[Environment]) -> str:
        if not self._too_long:
            return ""
        cap = self._options.cap_bytes
        takes = sum(environment.file_bytes for environment in environments)
        return (
            f"the files in {self._options.folder} take {takes} bytes, the cap is {cap}: "
            f"free {takes - cap} bytes on its file system and restart to give them back ({self._too_long[0]})"
        )
