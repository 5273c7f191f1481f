"""Opening a tier's folder: what can be trusted is kept, what can not is rebuilt empty, and one line says which."""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import lmdb
import msgspec

from pagetier.shm.failpoints import point
from pagetier.shm.protocol import BUILD
from pagetier.tiers.base import TierError
from pagetier.tiers.capacity import TRANSACTION_BYTES, Shape, shape_of
from pagetier.tiers.lmdb import compaction, files, free_space, recovery
from pagetier.tiers.lmdb.environment import Environment
from pagetier.tiers.lmdb.records import FORMAT, About
from pagetier.tiers.lmdb.recovery import Journal, State, read_state

_NEW: Final = "new"
_OURS: Final = {"owner", "state", "state.tmp", "lost+found"}


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Of a tier. cap_bytes: all its files together never take more. proof_seconds: for proving it sound."""

    folder: Path
    cap_bytes: int
    frame_bytes: int
    environments: int = 4
    transaction_bytes: int = TRANSACTION_BYTES
    proof_seconds: float = 30.0

    @property
    def shape(self) -> Shape:
        """Of each environment."""
        return shape_of(self.cap_bytes, self.environments, self.frame_bytes, self.transaction_bytes)


class OpenedFolder(msgspec.Struct, frozen=True):
    """A folder that was opened. how: one line; note: what an administrator should do, or ""."""

    environments: list[Environment]
    journal: Journal
    how: str
    note: str


_READ_ONLY = (
    "; if the kernel made it read-only after errors (dmesg), repair and mount it again; a service may write to its own"
    " folder below /var/lib alone: `systemctl edit` it, [Service] ReadWritePaths="
)


@contextlib.contextmanager
def telling(folder: Path) -> Iterator[None]:
    """What the system refuses becomes one sentence."""
    try:
        yield
    except (FileExistsError, NotADirectoryError) as error:
        raise TierError(f"{folder} can not be the disk tier's folder: it, or what it is in, is a file") from error
    except OSError as error:
        hint = _READ_ONLY if error.errno == errno.EROFS else ""
        raise TierError(f"{folder} can not be used by the disk tier: {error.strerror or error}{hint}") from error
    except lmdb.Error as error:
        raise TierError(f"{folder} can not be used by the disk tier: {error}") from error


def prepare(options: Options) -> int:
    """Makes the folder and makes it ours. A descriptor: as long as it is open, it is. Raises TierError."""
    if not options.shape.room:
        raise TierError(
            f"a disk tier of {options.cap_bytes} bytes is too small for frames of {options.frame_bytes}: give it more"
        )
    with telling(options.folder):
        options.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return files.own(options.folder)


def open_folder(options: Options) -> OpenedFolder:
    """The caller guarantees that the folder is ours. Raises TierError."""
    with telling(options.folder):
        state, why = _known(options)
        if state is None or why:
            return _begin_anew(options, f"rebuilt empty: {why}" if why else "new")
        return _reopen(options, state)


def _known(options: Options) -> tuple[State | None, str]:
    """What the state file says, and why nothing of it is of use. Raises TierError where the folder is another's."""
    try:
        state = recovery.read_state(options.folder)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        return None, f"its state file can not be understood ({error})"
    if state is None:
        return None, "its state file is missing" if _environments_there(options.folder) else ""
    wanted = {"format": FORMAT, "frame_bytes": options.frame_bytes, "environments": options.environments}
    found = {name: getattr(state, name) for name in wanted}
    words = [f"{name} was {found[name]}, is {wanted[name]}" for name in wanted if found[name] != wanted[name]]
    return state, ", ".join(words).replace("_", " ")


def _environments_there(folder: Path) -> bool:
    there = {path.name for path in files.numbered_folders(folder)}
    foreign = sorted({path.name for path in folder.iterdir()} - there - _OURS)
    if foreign:
        raise TierError(f"{folder} holds other things ({foreign[0]}): give the disk tier a folder of its own")
    return bool(there)


def _begin_anew(options: Options, how: str) -> OpenedFolder:
    for path in list(files.numbered_folders(options.folder)):
        files.remove_environment(path)
    point("opening.emptied")
    journal = Journal(options.folder, _state(options))
    journal.mark_dirty()
    point("opening.marked")
    return _Opening(options, journal, [_NEW] * options.environments).run(how)


def _reopen(options: Options, state: State) -> OpenedFolder:
    began = time.monotonic()
    compaction.remove_copies(options.folder)
    folders = [options.folder / str(number) for number in range(options.environments)]
    short = {folder: recovery.shortened(folder) for folder in folders}
    how, doubted = "as it was left", [folder for folder in folders if short[folder]]
    unclean = state.boot != recovery.boot_id() and not state.clean
    journal = Journal(options.folder, state)
    if doubted and not unclean:
        journal.doubt()
    if unclean:
        _forget(folders)
    proofs = _proofs(folders if unclean else doubted, options)
    doubts = [short[folder] or proof if (proof := proofs.get(folder, short[folder])) else "" for folder in folders]
    _remove([folder for folder, doubt in zip(folders, doubts, strict=True) if doubt])
    if unclean:
        why = "as nobody trusted it" if state.doubted else "after an unclean host restart"
        how = f"{why}: proven sound in {time.monotonic() - began:.1f} s"
    if how != "as it was left" or any(doubts):
        journal.mark_dirty()
    opened = _Opening(options, journal, doubts).run(how)
    for environment, folder in zip(opened.environments, folders, strict=True):
        environment.proven = folder in proofs
    return opened


def _forget(folders: Sequence[Path]) -> None:
    """What is proven is what the disk holds."""
    for folder in folders:
        files.forget(folder / files.DATA)


def _remove(folders: Sequence[Path]) -> None:
    """What is not sound goes before the journal says that what is there can be believed: this process may die."""
    for folder in folders:
        files.remove_environment(folder)


def _proofs(folders: Sequence[Path], options: Options) -> dict[Path, str]:
    """What prove() says of those that can be proven."""
    provable = [folder for folder in folders if recovery.lengthened(folder, _most_bytes(folder, options))]
    return dict(zip(provable, recovery.prove(provable, options.proof_seconds), strict=True))


def _most_bytes(folder: Path, options: Options) -> int:
    """That its file can have had; it may have had a larger share of the cap before."""
    data = folder / files.DATA
    there = data.stat().st_size if data.exists() else 0
    return 2 * max(there, options.shape.map_bytes)


def _state(options: Options) -> State:
    return State(format=FORMAT, frame_bytes=options.frame_bytes, environments=options.environments, boot="", clean=True)


def _is_the_systems(error: Exception) -> bool:
    """Whether it is the system's refusal. LMDB's own codes are below 0; an error that we raised has none."""
    code: int = getattr(error, "code", 0)
    return code > 0 and code != errno.EINVAL


class _Opening:
    """Environment by environment. doubts: of each why it is not to be opened, or "": then LMDB's word is asked."""

    def __init__(self, options: Options, journal: Journal, doubts: Sequence[str]) -> None:
        self._options = options
        self._journal = journal
        self._doubts = list(doubts)
        self._too_long: list[str] = []

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
        if not self._doubts[number]:
            try:
                return self._fitted(self._environment(folder))
            except (lmdb.Error, msgspec.MsgspecError, struct.error, TypeError, UnicodeDecodeError) as error:
                if _is_the_systems(error):
                    raise  # it says nothing about what lies there
                self._doubts[number] = f"LMDB refuses it ({error})"
                self._journal.mark_dirty()
        files.remove_environment(folder)
        return self._environment(folder)

    def _environment(self, folder: Path) -> Environment:
        about = About(FORMAT, self._options.frame_bytes, BUILD)
        environment = Environment(folder, self._options.shape, about)
        if (environment.about.format, environment.about.frame_bytes) != (about.format, about.frame_bytes):
            environment.close()
            raise lmdb.InvalidError(f"it is of format {environment.about.format}")
        free_space.hold(environment)
        files.sync_folder(folder)  # a file that was just made, and synced, could still lose its name
        return environment

    def _fitted(self, environment: Environment) -> Environment:
        if not compaction.is_needed(environment):
            return environment
        self._journal.mark_dirty()
        try:
            why = compaction.shrink(environment)
        except OSError as error:
            why = str(error)
        except BaseException:
            environment.close()
            raise
        if why:
            self._too_long.append(why)
            return environment
        environment.close()
        return self._environment(environment.folder)

    def _line(self, how: str) -> str:
        reasons = [doubt for doubt in self._doubts if doubt not in ("", _NEW)]
        if not reasons:
            return how
        part = "" if len(reasons) == len(self._doubts) else f" in {len(reasons)} of {len(self._doubts)} parts"
        return f"rebuilt empty{part}: {reasons[0]}"

    def _note(self, environments: Sequence[Environment]) -> str:
        if not self._too_long:
            return ""
        cap = self._options.cap_bytes
        takes = sum(environment.file_bytes for environment in environments)
        return (
            f"the files in {self._options.folder} take {takes} bytes, the cap is {cap}: "
            f"free {takes - cap} bytes on its file system and restart to give them back ({self._too_long[0]})"
        )


def doubt(folder: Path) -> None:
    """Requires the next process that opens the folder to verify it first. Raises TierError."""
    with (
        _owned(folder),
        contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError),
    ):  # an unreadable state file causes a rebuild anyway
        state = read_state(folder)
        if state is not None:
            Journal(folder, state).doubt()


def give_up(folder: Path) -> None:
    """Deletes the folder's content, so that the next process starts with an empty tier. Raises TierError."""
    with _owned(folder):
        for path in list(files.numbered_folders(folder)):
            files.remove_environment(path)


@contextlib.contextmanager
def _owned(folder: Path) -> Iterator[None]:
    """Locks the folder, creating it if it is missing, since it is about to be opened."""
    with telling(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = files.own(folder)
        try:
            yield
        finally:
            os.close(descriptor)
