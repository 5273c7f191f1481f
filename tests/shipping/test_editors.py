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


@pytest.fixture(scope="module")
def environment() -> Any:
    """Returns this Python for jedi, which examines it in a process of its own."""
    return jedi.create_environment(sys.executable, safe=False)


def pyright(*programs: Path) -> Any:
    """Returns pyright's report on these files. It has the Node.js of its own wheel and asks for no newer version."""
    tool = Path(sysconfig.get_path("scripts"), "pyright")
    command = [str(tool), "--outputjson", "--pythonpath", sys.executable, *map(str, programs)]
    own = os.environ | {"PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    return json.loads(subprocess.run(command, cwd=programs[0].parent, env=own, capture_output=True, check=False).stdout)


def messages(report: Any, severity: str) -> list[str]:
    return [each["message"] for each in report["generalDiagnostics"] if each["severity"] == severity]


def test_pyright_resolves_the_package_and_reports_what_it_lacks(program: Path) -> None:
    lacking = program.with_name("lacking.py")
    lacking.write_text("from pagetier import Clients\nfrom pagetier.shm.protocols import Reserve\n")
    report = pyright(program, lacking)
    client, match, reserve = messages(report, "information")
    assert client == 'Type of "Client" is "type[Client]"'
    assert match.startswith('Type of "Client.match" is "(self: Client, keys: ') and match.endswith('-> Match"')
    assert reserve == 'Type of "Reserve" is "type[Reserve]"'
    first, second = messages(report, "error")
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
def test_jedi_leads_to_the_sources(program: Path, environment: Any, line: int, word: str, file: str) -> None:
    script = jedi.Script(path=program, environment=environment, project=jedi.Project(program.parent))
    column = PROGRAM.splitlines()[line - 1].rindex(word)
    (found,) = script.goto(line, column, follow_imports=True, prefer_stubs=True)
    assert found.module_path is not None and found.module_path.resolve() == (ROOT / file).resolve()


def test_jedi_completes_the_methods_of_a_client(program: Path, environment: Any) -> None:
    script = jedi.Script(PROGRAM + "client.", path=program, environment=environment)
    assert {"match", "load", "store", "register"} <= {each.name for each in script.complete()}
