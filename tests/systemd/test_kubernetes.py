"""The Kubernetes example is valid for the code, and its daemon and engine match each other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from pagetier.daemon.config.load import ConfigError, load
from pagetier.daemon.main import main

DOCS = Path(__file__).resolve().parents[2] / "docs/kubernetes"


def documents(name: str) -> list[Any]:
    return list(yaml.safe_load_all((DOCS / name).read_text()))


@pytest.fixture
def daemon() -> Any:
    return documents("daemonset.yaml")[1]["spec"]["template"]["spec"]


@pytest.fixture
def engine() -> Any:
    return documents("vllm.yaml")[0]["spec"]


def paths(spec: Any) -> dict[str, str]:
    """Returns the node's folders by their paths in the container."""
    places = {volume["name"]: volume["hostPath"]["path"] for volume in spec["volumes"] if "hostPath" in volume}
    mounts = spec["containers"][0]["volumeMounts"]
    return {mount["mountPath"]: places[mount["name"]] for mount in mounts if mount["name"] in places}


def test_the_daemons_configuration_and_command_are_valid(daemon: Any, tmp_path: Path) -> None:
    file = tmp_path / "pagetierd.toml"
    file.write_text(documents("daemonset.yaml")[0]["data"]["pagetierd.toml"])
    config = load(file, {}, {})
    assert config.socket.parent == Path("/run/pagetier")
    assert paths(daemon)["/run/pagetier"] == "/run/pagetier"
    assert config.disk.path is not None and str(config.disk.path).startswith("/var/lib/pagetier/")
    program, *words = daemon["containers"][0]["command"]
    assert program == "pagetierd"
    with main.make_context(program, list(words)) as context:
        assert context.params["keep_while"] == Path("/run/pagetier/keep")
    memory = daemon["containers"][0]["resources"]["limits"]["memory"]
    assert int(memory.removesuffix("Gi")) << 30 > config.arena.size + 200 * config.entries


def test_the_daemon_sees_pids_and_keeps_its_memory_without_other_privileges(daemon: Any) -> None:
    assert daemon["hostPID"] is True
    assert paths(daemon)["/dev/shm"] == "/dev/shm"
    assert daemon["securityContext"]["runAsNonRoot"] is True
    context = daemon["containers"][0]["securityContext"]
    assert context == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_the_daemon_gets_no_variables_of_services(daemon: Any, engine: Any) -> None:
    with pytest.raises(ConfigError, match="unknown variable PAGETIER_SERVICE_HOST"):
        load(None, {"PAGETIER_SERVICE_HOST": "10.96.0.7"}, {})  # set by a Service called pagetier
    assert daemon["enableServiceLinks"] is engine["enableServiceLinks"] is False


def test_the_engine_needs_only_the_folder(daemon: Any, engine: Any, tmp_path: Path) -> None:
    assert paths(engine) == {"/run/pagetier": paths(daemon)["/run/pagetier"]}
    assert not {"hostPID", "hostIPC", "hostNetwork"} & engine.keys()
    file = tmp_path / "pagetierd.toml"
    file.write_text(documents("daemonset.yaml")[0]["data"]["pagetierd.toml"])
    config = load(file, {}, {})
    assert set(engine["securityContext"]["supplementalGroups"]) == set(config.access.groups)
    assert daemon["securityContext"]["runAsGroup"] in config.access.groups  # the group of the socket
    container = engine["containers"][0]
    assert {"name": "PAGETIER_SOCKET", "value": str(config.socket)} in container["env"]
    assert json.loads(container["args"][1])["kv_connector"] == "PagetierConnector"
