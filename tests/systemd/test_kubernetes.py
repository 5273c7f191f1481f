"""The Kubernetes example is valid for the code, and its daemon and engine match each other."""

from __future__ import annotations

import re
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from click.testing import CliRunner

from pagetier.daemon.cli import main as cli
from pagetier.daemon.config.loader import ConfigError, load
from pagetier.daemon.fleet.fleet_tier import WORKER_SOCKET
from pagetier.daemon.main import main
from pagetier.shm.exit_codes import Exit

DOCS = Path(__file__).resolve().parents[2] / "docs/kubernetes"
VERSIONS = ("1.25", kubernetes_validate.latest_version())


def document(name: str, kind: str) -> Any:
    (found,) = (one for one in yaml.safe_load_all((DOCS / name).read_text()) if one["kind"] == kind)
    return found


def objects() -> Iterator[Any]:
    for path in sorted(DOCS.glob("*.yaml")):
        yield from yaml.safe_load_all(path.read_text())


def of_kind(kind: str) -> list[Any]:
    return [each for each in objects() if each["kind"] == kind]


def configuration() -> str:
    return str(document("daemonset.yaml", "ConfigMap")["data"]["pagetierd.toml"])


@pytest.fixture
def daemon() -> Any:
    return document("daemonset.yaml", "DaemonSet")["spec"]["template"]["spec"]


@pytest.fixture(params=["vllm.yaml", "sglang.yaml"])
def engine(request: pytest.FixtureRequest) -> Any:
    return document(request.param, "Pod")["spec"]


def paths(spec: Any) -> dict[str, str]:
    """Returns the node's folders by their paths in the container."""
    places = {volume["name"]: volume["hostPath"]["path"] for volume in spec["volumes"] if "hostPath" in volume}
    mounts = spec["containers"][0]["volumeMounts"]
    return {mount["mountPath"]: places[mount["name"]] for mount in mounts if mount["name"] in places}


@pytest.mark.parametrize("version", VERSIONS)
def test_every_object_fits_the_schema_of_kubernetes(version: str) -> None:
    kinds = []
    for each in objects():
        kubernetes_validate.validate(each, version, strict=True)
        kinds.append(each["kind"])
    assert sorted(kinds) == [
        "ConfigMap",
        "ConfigMap",
        *["DaemonSet"] * 3,
        *["Namespace"] * 4,
        *["NetworkPolicy"] * 2,
        *["Pod"] * 2,
        "Secret",
    ]


@pytest.mark.parametrize(
    "change",
    [
        {"enableServiceLink": False},  # a key that does not exist
        {"hostPID": "true"},  # a string in place of a boolean
        {"terminationGracePeriodSeconds": "60s"},
        {"containers": [{"image": "without-a-name"}]},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_mistake_does_not_fit_the_schema(daemon: Any, change: dict[str, Any]) -> None:
    each = document("daemonset.yaml", "DaemonSet")
    each["spec"]["template"]["spec"] = daemon | change
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(each, kubernetes_validate.latest_version(), strict=True)


def test_the_image_has_one_name(daemon: Any) -> None:
    (image,) = {each["image"] for each in (*daemon["initContainers"], daemon["containers"][0])}
    for page in ("installation.md", "kubernetes/README.md"):
        assert image in (DOCS.parent / page).read_text()


def test_the_daemons_configuration_and_command_are_valid(daemon: Any, tmp_path: Path) -> None:
    file = tmp_path / "pagetierd.toml"
    file.write_text(configuration())
    config = load(file, {}, {})
    assert config.socket.parent == Path("/run/pagetier")
    assert paths(daemon)["/run/pagetier"] == "/run/pagetier"
    assert str(config.disk.path[0]).startswith("/var/lib/pagetier/")
    program, *words = daemon["containers"][0]["command"]
    assert program == "pagetierd"
    with main.make_context(program, list(words)) as context:
        assert context.params["keep_while"] == Path("/run/pagetier/keep")
    memory = daemon["containers"][0]["resources"]["limits"]["memory"]
    assert int(memory.removesuffix("Gi")) << 30 > config.arena.size + 200 * config.entries


def test_the_daemonset_for_old_kernels_differs_by_the_hosts_pids_only(daemon: Any) -> None:
    assert not {"hostPID", "hostIPC", "hostNetwork", "hostUsers"} & daemon.keys()
    daemon["hostPID"] = True
    assert document("daemonset-host-pid.yaml", "DaemonSet")["spec"]["template"]["spec"] == daemon
    for kind in ("Namespace", "ConfigMap"):
        assert document("daemonset-host-pid.yaml", kind) == document("daemonset.yaml", kind)


def test_namespaces_allow_the_folders_of_the_node_that_their_pods_need() -> None:
    """The levels "baseline" and "restricted" of the Pod Security Standards refuse each pod with a hostPath."""
    level = "pod-security.kubernetes.io/enforce"
    levels = {each["metadata"]["name"]: each["metadata"]["labels"][level] for each in of_kind("Namespace")}
    pods = [(each["metadata"]["namespace"], each["spec"]) for each in of_kind("Pod")]
    pods += [(each["metadata"]["namespace"], each["spec"]["template"]["spec"]) for each in of_kind("DaemonSet")]
    needs = {namespace for namespace, spec in pods if any("hostPath" in volume for volume in spec["volumes"])}
    assert levels == dict.fromkeys(needs, "privileged")


def test_the_daemon_keeps_its_memory_without_other_privileges(daemon: Any) -> None:
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


def test_the_probes_are_valid_commands(daemon: Any) -> None:
    probes = [
        daemon["containers"][0][f"{kind}Probe"]["exec"]["command"] for kind in ("startup", "readiness", "liveness")
    ]
    for program, *words in probes:
        assert program == "pagetier"
        done = CliRunner().invoke(cli, [*words, "--socket", "/nowhere/pagetier.sock"])
        assert done.exit_code == Exit.UNREACHABLE, done.output


def test_prometheus_reaches_the_socket_of_the_metrics(daemon: Any) -> None:
    config = tomllib.loads(configuration())
    _, relay = daemon["containers"]
    assert f"UNIX-CONNECT:{config['metrics']['listen']}" in relay["args"]
    port = document("daemonset.yaml", "DaemonSet")["spec"]["template"]["metadata"]["annotations"]["prometheus.io/port"]
    assert str(relay["ports"][0]["containerPort"]) == port


def test_pods_have_namespaces_and_run_on_nodes_with_gpus(daemon: Any, engine: Any) -> None:
    for name, kind in (("daemonset.yaml", "DaemonSet"), ("vllm.yaml", "Pod"), ("sglang.yaml", "Pod")):
        namespace = document(name, "Namespace")["metadata"]["name"]
        assert document(name, kind)["metadata"]["namespace"] == namespace
    assert daemon["tolerations"] == engine["tolerations"]


def test_the_engine_needs_only_the_folder(daemon: Any, engine: Any, tmp_path: Path) -> None:
    assert paths(engine) == {"/run/pagetier": paths(daemon)["/run/pagetier"]}
    assert not {"hostPID", "hostIPC", "hostNetwork"} & engine.keys()
    file = tmp_path / "pagetierd.toml"
    file.write_text(configuration())
    config = load(file, {}, {})
    (group,) = engine["securityContext"]["supplementalGroups"]
    assert (daemon["securityContext"]["runAsGroup"], config.access.socket_group) == (group, ())
    assert (config.access.authorize_by, config.access.socket_mode) == ("socket", 0o660)
    assert engine["securityContext"]["runAsNonRoot"] is True and engine["securityContext"]["runAsUser"] != group
    assert {"name": "PAGETIER_SOCKET", "value": str(config.socket)} in engine["containers"][0]["env"]


def test_the_engines_load_pagetier() -> None:
    for name in ("vllm", "sglang"):
        engine = document(f"{name}.yaml", "Pod")["spec"]["containers"][0]
        assert {"name": "PAGETIER", "value": "1"} in engine["env"] and engine["command"][:2] == [name, "serve"]
        page = (DOCS.parent / f"{name}.md").read_text()
        assert f"PAGETIER=1 {name} serve" in page and "args" not in engine


@pytest.fixture
def worker() -> Any:
    return document("fleet.yaml", "DaemonSet")["spec"]["template"]["spec"]


def test_the_fleets_worker_comes_to_the_daemon(daemon: Any, worker: Any, tmp_path: Path) -> None:
    (section,) = re.findall(r"(?s)```\n( *\[remote\].*?)```", (DOCS / "README.md").read_text())
    file = tmp_path / "pagetierd.toml"
    file.write_text(configuration() + textwrap.dedent(section))
    config = load(file, {}, {})
    (container,) = worker["containers"]
    assert container["command"][-1] == str(config.socket.with_name(WORKER_SOCKET))
    assert config.remote.worker == "service" and paths(worker)["/run/pagetier"] == paths(daemon)["/run/pagetier"]
    assert str(config.remote.key_file) == f"{container['volumeMounts'][1]['mountPath']}/fleet.key"
    assert worker["securityContext"] == daemon["securityContext"], "the daemon takes workers of its own user only"
    assert (worker["nodeSelector"], worker["tolerations"]) == (daemon["nodeSelector"], daemon["tolerations"])
    assert not {"hostPID", "hostIPC", "hostNetwork"} & worker.keys() and container["securityContext"]["capabilities"]


def test_only_the_fleets_worker_has_the_network() -> None:
    pods = {name: document(name, "DaemonSet")["spec"]["template"] for name in ("daemonset.yaml", "fleet.yaml")}
    labels = [pod["metadata"]["labels"] for pod in pods.values()]
    policies = {
        each["spec"]["podSelector"]["matchLabels"]["app"]: each["spec"]
        for each in objects()
        if each["kind"] == "NetworkPolicy"
    }
    assert [set(policies[label["app"]]["policyTypes"]) for label in labels] == [{"Ingress", "Egress"}] * 2
    assert "egress" not in policies["pagetierd"] and "ingress" not in policies["pagetierd-remote"]
    (port,) = pods["daemonset.yaml"]["spec"]["containers"][1]["ports"]
    assert policies["pagetierd"]["ingress"][0]["ports"][0]["port"] == port["containerPort"]


def test_the_workers_image_is_built_as_the_page_says(worker: Any) -> None:
    page = (DOCS / "README.md").read_text()
    (image,) = {each["image"] for each in (*worker["initContainers"], *worker["containers"])}
    (extras,) = re.findall(rf"--build-arg EXTRAS=(\S+) --tag {re.escape(image)} ", page)
    declared = tomllib.loads((DOCS.parents[1] / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(extras.split(",")) <= declared.keys()
    assert "ARG EXTRAS=\n" in (DOCS.parents[1] / "Containerfile").read_text()
