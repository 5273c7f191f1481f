"""The state file marks data that may not be durable, for the next process to open the tier."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from child_process import kill, spawn
from eventually import eventually
from pagetier.shm.process import Process
from pagetier.tiers.disk import file_system
from pagetier.tiers.disk.recovery import State, prove, read_state
from process_states import arguments_of, children_of
from store_pages import outgoings, small_tier


@contextmanager
def no_descriptors() -> Iterator[None]:
    """Prevents this process from opening files until the end of the block."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def said(folder: Path) -> State:
    """Returns the content of the state file."""
    state = read_state(folder)
    assert state is not None
    return state


def open_for_nobody(fifo: Path) -> None:
    """Opens a FIFO, so that a process that waits for its other end continues."""
    with suppress(OSError):
        os.close(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))


@pytest.mark.usefixtures("each_store")
def test_a_state_file_of_unknown_content_is_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file was renamed into place, but the folder could not be synced."""
    tier = small_tier(tmp_path)
    assert all(tier.write([], outgoings(range(10))).stored)
    with ExitStack() as stack, monkeypatch.context() as patch:

        def fail(name: str) -> None:
            if name == "state.exchanged":
                stack.enter_context(no_descriptors())

        patch.setattr(file_system, "point", fail)
        tier.sync()
    assert said(tmp_path).clean
    assert all(tier.write([], outgoings(range(100, 110))).stored)
    assert not said(tmp_path).clean
    tier.close()
    assert said(tmp_path).clean


@pytest.mark.usefixtures("each_store")
def test_a_failed_distrust_is_written_before_the_next_change(tmp_path: Path) -> None:
    tier = small_tier(tmp_path)
    with no_descriptors():
        tier.distrust()
    assert all(tier.write([], outgoings(range(10))).stored)
    assert said(tmp_path).doubted
    tier.close()
    assert said(tmp_path).doubted


def test_a_verification_ends_with_its_parent(tmp_path: Path) -> None:
    """However long it would take, since its timeout ended with the parent."""
    os.mkfifo(tmp_path / "data.mdb")  # opening it blocks
    wants = spawn(lambda: prove([tmp_path], 600.0))
    with ExitStack() as living:
        living.callback(kill, wants)
        assert eventually(lambda: bool(children_of(wants)))
        proof = Process.of(*children_of(wants))
        assert eventually(lambda: "pagetier.tiers.lmdb.proof" in arguments_of(proof.pid))
    try:
        assert eventually(lambda: not proof.lives()), "the verification outlived its parent"
    finally:
        open_for_nobody(tmp_path / "data.mdb")
