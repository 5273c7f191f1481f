"""Pyright and jedi resolve an editable install in a project of its user."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import jedi
import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """\
from pagetier import Client
from pagetier.client import Match
from pagetier.shm import _core
from pagetier.shm.protocol import Reserve

reveal_type(Client)
reveal_type(Client.match)
reveal_type(Reserve)
client = Client()
client.match
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """Returns a program in a folder that knows nothing of this checkout."""
    (tmp_path / "program.py").write_text(PROGRAM)
    return tmp_path / "program.py"


def pyright(program: Path) -> Any:
    """Returns the report of pyright, which runs with the Node.js from its own wheel and asks for no newer version."""
    tool = Path(sysconfig.get_path("scripts"), "pyright")
    command = [str(tool), "--outputjson", "--pythonpath", sys.executable, str(program)]
    own = os.environ | {"PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    return json.loads(subprocess.run(command, cwd=program.parent, env=own, capture_output=True, check=False).stdout)


def messages(report: Any, severity: str) -> list[str]:
    return [each["message"] for each in report["generalDiagnostics"] if each["severity"] == severity]


def test_pyright_resolves_the_package(program: Path) -> None:
    report = pyright(program)
    assert messages(report, "error") == []
    client, match, reserve = messages(report, "information")
    assert client == 'Type of "Client" is "type[Client]"'
    assert match.startswith('Type of "Client.match" is "(self: Client, keys: ') and match.endswith('-> Match"')
    assert reserve == 'Type of "Reserve" is "type[Reserve]"'


def test_pyright_reports_what_the_package_lacks(program: Path) -> None:
    program.write_text("from pagetier import Clients\nfrom pagetier.shm.protocols import Reserve\n")
    first, second = messages(pyright(program), "error")
    assert "Clients" in first and "pagetier.shm.protocols" in second


@pytest.mark.parametrize(
    ("line", "word", "file"),
    [
        (1, "Client", "src/pagetier/client/client.py"),
        (2, "Match", "src/pagetier/client/match.py"),
        (3, "_core", "src/pagetier/shm/_core.pyi"),
        (4, "Reserve", "src/pagetier/shm/protocol.py"),
        (10, "match", "src/pagetier/client/client.py"),
    ],
)
def test_jedi_leads_to_the_sources(program: Path, line: int, word: str, file: str) -> None:
    script = jedi.Script(path=program, environment=_environment(), project=jedi.Project(program.parent))
    column = PROGRAM.splitlines()[line - 1].rindex(word)
    (found,) = script.goto(line, column, follow_imports=True, prefer_stubs=True)
    assert found.module_path is not None and found.module_path.resolve() == (ROOT / file).resolve()


def test_jedi_completes_the_methods_of_a_client(program: Path) -> None:
    script = jedi.Script(PROGRAM + "client.", path=program, environment=_environment())
    assert {"match", "load", "store", "register"} <= {each.name for each in script.complete()}


def _environment() -> Any:
    return jedi.create_environment(sys.executable, safe=False)
