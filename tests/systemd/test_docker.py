"""The Compose file is valid for Compose and for the code, and its daemon and engine match each other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from pagetier.daemon.cli import main as cli
from pagetier.daemon.config.cli_options import config_flags
from pagetier.daemon.config.id_ranges import IdRange
from pagetier.daemon.config.loader import load
from pagetier.daemon.main import main
from pagetier.shm.exit_codes import Exit

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "docs/docker/compose.yaml"
PAGE = ROOT / "docs/docker.md"


@pytest.fixture
def compose() -> Any:
    return yaml.safe_load(FILE.read_text())


@pytest.fixture
def daemon(compose: Any) -> Any:
    return compose["services"]["pagetierd"]


@pytest.fixture
def engine(compose: Any) -> Any:
    return compose["services"]["vllm"]


def fits_the_schema(file: Path) -> bool:
    """Returns whether a file fits the schema of the Compose specification, which check-jsonschema has a copy of."""
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(file)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_the_file_fits_the_schema_of_compose_and_mistakes_do_not(compose: Any, daemon: Any, tmp_path: Path) -> None:
    assert fits_the_schema(FILE)
    for mistake in ({"mem_limits": "67g"}, {"network_mode": False}, {"healthcheck": {"test": [1]}}):
        changed = compose | {"services": compose["services"] | {"pagetierd": daemon | mistake}}
        file = tmp_path / "compose.yaml"
        file.write_text(yaml.safe_dump(changed))
        assert not fits_the_schema(file), mistake


def test_the_daemons_command_is_valid_and_its_memory_fits_the_limit(daemon: Any) -> None:
    program, *words = daemon["command"]
    assert program == "pagetierd"
    with main.make_context(program, list(words)) as context:
        config = load(None, {}, config_flags(context.params))
        assert str(context.params["keep_while"]).startswith("/run/pagetier/")
    assert config.arena.size + 200 * config.entries < int(daemon["mem_limit"].removesuffix("g")) << 30
    assert int(daemon["stop_grace_period"].removesuffix("s")) > config.disk.stop_timeout
    command, *arguments = daemon["healthcheck"]["test"][1:]
    done = CliRunner().invoke(cli, [*arguments, "--socket", "/nowhere/pagetier.sock"])
    assert (command, done.exit_code) == ("pagetier", Exit.UNREACHABLE), done.output


def test_the_engine_needs_only_the_volume_of_the_socket_and_its_group(compose: Any, daemon: Any, engine: Any) -> None:
    with main.make_context("pagetierd", list(daemon["command"][1:])) as context:
        config = load(None, {}, config_flags(context.params))
    (group,) = map(int, engine["group_add"])
    assert config.access.groups == (IdRange(group, group),)
    assert f"USER {group}:{group}\n" in (ROOT / "Containerfile").read_text(), "the group of the socket"
    assert engine["environment"] == {"PAGETIER": "1", "PAGETIER_SOCKET": str(config.socket)}
    assert engine["volumes"] == ["run:/run/pagetier:ro"] and "run:/run/pagetier" in daemon["volumes"]
    assert engine["depends_on"] == ["pagetierd"], "a new volume takes its owner from the first container"
    assert compose["volumes"].keys() == {"run", "state"}


def test_the_daemon_has_no_privileges_of_the_host_but_its_memory(daemon: Any, engine: Any) -> None:
    assert not {"pid", "ipc", "userns_mode", "privileged", "cap_add"} & (daemon.keys() | engine.keys())
    assert (daemon["network_mode"], daemon["read_only"], daemon["cap_drop"]) == ("none", True, ["ALL"])
    assert [volume["source"] for volume in daemon["volumes"] if isinstance(volume, dict)] == ["/dev/shm"]


def test_the_page_and_the_file_agree(daemon: Any, engine: Any) -> None:
    page = PAGE.read_text()
    assert all(image in page for image in (daemon["image"], engine["image"]))
    assert "Add `pid: host`" in page.replace("\n", " ")
