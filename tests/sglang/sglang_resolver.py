"""What SGLang makes of settings and of the variable PAGETIER, as fixtures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from sglang_flags import FolderOf, Resolve
from sglang_model import Spec, write_config
from sglang_model_configs import write_model_config

_PROGRAM: Final = Path(__file__).with_name("sglang_settings.py")


@pytest.fixture(scope="session")
def resolve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Resolve]:
    """Resolves settings in a process that has loaded SGLang's plugins."""
    model = write_config(tmp_path_factory.mktemp("settings") / "model", Spec("mha", 16))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, str(_PROGRAM), str(model)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
    ) as process:
        assert process.stdin and process.stdout
        commands, answers = process.stdin, process.stdout

        def resolved(value: str, *flags: str) -> dict[str, Any]:
            commands.write(json.dumps([value, flags]) + "\n")
            commands.flush()
            answer: dict[str, Any] = json.loads(answers.readline())
            return answer

        yield resolved
        commands.close()


@pytest.fixture(scope="session")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> FolderOf:
    """Returns a function that returns the folder with a model's configuration."""
    folders = tmp_path_factory.mktemp("models")

    def folder(name: str) -> str:
        path = folders / name
        return str(path if path.exists() else write_model_config(path, name))

    return folder
