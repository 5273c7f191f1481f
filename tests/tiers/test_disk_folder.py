"""A folder that a user may not write to: the error names the folder, the user and a command, which helps."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from other_users import ALICE, as_root, output_as
from pagetier.tiers.disk_folder import folder_remedy

_IMPORTS = f"""
sys.path += {sys.path!r}
from store_pages import outgoing, small_tier
from pathlib import Path
"""
_OPEN = """
try:
    small_tier(Path(sys.argv[1])).close()
except Exception as error:
    print(error)
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that every user may enter, and root alone may write to."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="pagetier-disk-") as path:
        os.chmod(path, 0o755)  # noqa: PTH101
        yield Path(path)


def opened_by_alice(folder: Path) -> str:
    """Returns the error of a user who opens a tier in a folder; "" if it is open."""
    code, text = output_as(ALICE, _IMPORTS, _OPEN, str(folder))
    assert code == 0, text
    return text.strip()


@as_root
@pytest.mark.parametrize("name", ["absent", "with a space"])
def test_the_command_of_the_error_makes_an_absent_folder_usable(place: Path, name: str) -> None:
    folder = place / name
    why = opened_by_alice(folder)
    assert f"{folder} cannot be used by the disk tier: Permission denied; user {ALICE} may not write there" in why
    follow(why)
    assert opened_by_alice(folder) == ""


@as_root
def test_the_command_of_the_error_gives_a_folder_of_root_away_with_its_files(place: Path) -> None:
    folder = place / "of-root"
    (folder / "0").mkdir(parents=True)
    follow(opened_by_alice(folder))
    assert opened_by_alice(folder) == ""


def follow(why: str) -> None:
    """Runs the command that an error names, as root."""
    command = re.findall("as root, run (.*), or set another disk.path", why)
    assert command, why
    subprocess.run(shlex.split(command[0]), check=True)


@as_root
def test_a_closed_folder_above_is_named(place: Path) -> None:
    (place / "closed").mkdir(mode=0o700)
    why = opened_by_alice(place / "closed" / "tier")
    assert f"user {ALICE} may not enter {place}/closed: set another disk.path" in why


@as_root
def test_root_needs_no_remedy(place: Path) -> None:
    assert folder_remedy(place / "absent") == ""
