"""The files that `pagetier unit` installs: sandboxed, valid, and the same for a tenant."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pagetier.daemon.cli import main, unit_files
from pagetier.daemon.config.id_ranges import IdRange
from pagetier.daemon.config.loader import load

UNITS = Path(__file__).resolve().parents[2] / "systemd"
SERVICES = sorted(path.name for path in UNITS.glob("*.service"))
WORST, WORST_WITH_NETWORK = 15, 16  # tenths
OF_SYSTEMD = ("/usr/lib/systemd/system", "/lib/systemd/system")


def analysis(*words: str, units: Sequence[str | Path] = ()) -> subprocess.CompletedProcess[str]:
    """Runs systemd-analyze on the units of some folders, without those of this host and their drop-ins."""
    environ = os.environ | {"SYSTEMD_UNIT_PATH": ":".join(map(str, units))}
    return subprocess.run(["systemd-analyze", *words], env=environ, capture_output=True, text=True, check=False)


def can_analyse() -> bool:
    return shutil.which("systemd-analyze") is not None and "--offline" in analysis("--help").stdout


analyses = pytest.mark.skipif(not can_analyse(), reason="systemd-analyze is not installed, or older than systemd 250")


def pagetier(*words: str) -> Result:
    return CliRunner().invoke(main, ["unit", *words])


def lines_of(name: str) -> list[str]:
    text = (UNITS / name).read_text()
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def exposure(unit: Path) -> subprocess.CompletedProcess[str]:
    """Returns the assessment of a unit and its drop-ins, which fails if they forbid too little."""
    worst = WORST_WITH_NETWORK if "remote" in unit.name else WORST
    limit = f"--threshold={worst}"
    return analysis("security", "--offline=yes", limit, "--no-pager", str(unit), units=[unit.parent])


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the folder of the units of a host with the default daemon and a tenant's."""
    root = tmp_path_factory.mktemp("root")
    for words in (["--remote=10.0.0.0/8"], ["--tenant", "acme", "--remote=10.0.0.0/8"]):
        assert pagetier("install", "--root", str(root), *words).exit_code == 0
    return root / "etc/systemd/system"


@analyses
@pytest.mark.parametrize("name", SERVICES)
def test_each_installed_service_is_sandboxed(name: str, installed: Path) -> None:
    done = exposure(installed / name)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Overall exposure level" in done.stdout


@analyses
@pytest.mark.parametrize("name", SERVICES)
def test_a_service_without_the_sandbox_exceeds_the_limit(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes((UNITS / name).read_bytes())
    assert exposure(tmp_path / name).returncode != 0


@analyses
def test_systemd_accepts_all_units(tmp_path: Path, installed: Path) -> None:
    folder = shutil.copytree(installed, tmp_path / "units")
    for name in SERVICES:
        text = re.sub(r"/\S*/(pagetierd|python\S*)(?= --config| -m)", "/bin/true", (folder / name).read_text())
        (folder / name).write_text(re.sub("(?m)^Documentation=.*\n|^(User|Group)=.*\n", "", text))
    files = (str(folder / name.replace("@", "@t")) for name in SERVICES)
    done = analysis("verify", *files, units=[folder, *OF_SYSTEMD])
    assert [line for line in done.stderr.splitlines() if "pagetierd" in line] == []


def test_the_checksums_of_all_units_and_drop_ins_are_shipped() -> None:
    known = (UNITS / "shipped.sha256").read_text().splitlines()
    for name in (*SERVICES, "10-sandbox.conf", "metrics-on-localhost.conf", "remote-network.conf"):
        line = f"{hashlib.sha256((UNITS / name).read_bytes()).hexdigest()}  {name}"
        assert line in known, f"append to systemd/shipped.sha256, which keeps the lines of earlier versions: {line}"


def test_no_unit_has_a_directive_that_would_break_the_service() -> None:
    for name in (*SERVICES, "10-sandbox.conf"):
        lines = lines_of(name)
        assert not [line for line in lines if line.startswith(("DynamicUser=", "PrivateUsers=", "RemoveIPC="))]
    for name in SERVICES:
        lines = lines_of(name)
        assert any(line.startswith("User=pagetier") for line in lines)
    assert not list(UNITS.glob("*.socket"))


def test_services_that_use_folders_start_after_mounts_that_need_the_network() -> None:
    for name in (name for name in SERVICES if "memory" not in name):
        after = " ".join(line for line in lines_of(name) if line.startswith("After="))
        assert "remote-fs.target" in after, name


def test_a_tenants_unit_differs_from_the_plain_one_only_in_names() -> None:
    def named(line: str) -> str:
        return re.sub(
            r"pagetier(d?-memory|d-release-memory|d)?[-@]%i",
            lambda found: f"pagetier{found[1] or ''}",
            line.replace("%i.toml", "pagetierd.toml").replace("%i-remote.env", "remote.env"),
        )

    for name in (name for name in SERVICES if "@" not in name):
        own = ("Description=", "Environment=PAGETIER")
        plain = [line for line in lines_of(name) if not line.startswith(own)]
        assert plain == [named(line) for line in lines_of(name.replace(".", "@.")) if not line.startswith(own)]


def test_the_examples_are_valid_configurations(tmp_path: Path) -> None:
    file = tmp_path / "example.toml"
    for name in ("pagetierd.toml", "tenant.toml"):
        text = re.sub(r'"(pagetier|pagetier-TENANT|monitoring|vllm)"\]', '"root"]', (UNITS / name).read_text())
        file.write_text(text)
        assert load(file, {}, {}).arena.size == 1 << 30
        file.write_text(re.sub(r"(?m)^# (?=[a-z_]+ = )", "", text))
        config = load(file, {}, {})
        assert (config.disk.size, config.access.groups) == ((100 << 30,), (IdRange(0, 0),))


def test_a_second_installation_keeps_the_configuration(tmp_path: Path) -> None:
    first = pagetier("install", "--root", str(tmp_path))
    assert first.exit_code == 0, first.output
    unit = tmp_path / "etc/systemd/system/pagetierd.service"
    config = tmp_path / "etc/pagetier/pagetierd.toml"
    program = Path(sys.executable).with_name("pagetierd")
    assert f"ExecStart={program} --config" in unit.read_text()
    assert unit.stat().st_mode & 0o777 == 0o644
    config.write_text("# mine\n")
    assert "installed" not in pagetier("install", "--root", str(tmp_path)).output
    assert config.read_text() == "# mine\n"


def test_a_tenant_gets_files_of_its_own(tmp_path: Path) -> None:
    assert pagetier("install", "--root", str(tmp_path), "--tenant", "acme").exit_code == 0
    config = (tmp_path / "etc/pagetier/acme.toml").read_text()
    assert 'groups = ["pagetier-acme"]' in config
    assert "/var/lib/pagetier-acme" in config
    file = tmp_path / "acme.toml"
    file.write_text(config.replace('groups = ["pagetier-acme"]', ""))
    result = load(file, {}, {})
    assert (result.name, str(result.socket)) == ("pagetier-acme", "/run/pagetier-acme/pagetier.sock")
    assert "u pagetier-acme -" in (tmp_path / "etc/sysusers.d/pagetier-acme.conf").read_text()


def test_a_tenants_files_name_only_the_tenants_paths(tmp_path: Path) -> None:
    assert pagetier("install", "--root", str(tmp_path), "--tenant", "acme", "--metrics").exit_code == 0
    for name in ("etc/pagetier/acme.toml", "etc/sysusers.d/pagetier-acme.conf"):
        text = (tmp_path / name).read_text()
        assert "acme" in text and "TENANT" not in text
        assert not re.search(r'"pagetier"|/(run|lib)/pagetier[/"]|-aG pagetier |pagetierd`|install --metrics', text)


@pytest.mark.parametrize(("words", "service"), [((), "pagetierd"), (("--tenant", "acme"), "pagetierd@acme")])
def test_a_metrics_port_needs_a_drop_in(tmp_path: Path, words: tuple[str, ...], service: str) -> None:
    drop_in = tmp_path / f"etc/systemd/system/{service}.service.d/metrics-on-localhost.conf"
    assert pagetier("install", "--root", str(tmp_path), *words).exit_code == 0
    assert not drop_in.exists()
    assert pagetier("install", "--root", str(tmp_path), "--metrics", *words).exit_code == 0
    assert "RestrictAddressFamilies=AF_INET" in drop_in.read_text()
    printed = pagetier("print", "--metrics", *words).output
    assert f"{drop_in.parent.name}/{drop_in.name}\n# A drop-in" in printed


@pytest.mark.parametrize(("words", "at"), [((), ""), (("--tenant", "acme"), "@acme")])
def test_the_fleets_worker_is_installed_on_request(tmp_path: Path, words: tuple[str, ...], at: str) -> None:
    root, units = str(tmp_path), tmp_path / "etc/systemd/system"
    assert pagetier("install", "--root", root, *words).exit_code == 0
    assert not list(units.glob("pagetierd-remote*"))
    done = pagetier("install", "--root", root, "--remote", "10.0.0.0/8", "--remote=localhost", *words)
    assert done.exit_code == 0 and f"enable pagetierd{at} pagetierd-remote{at}\n" in done.output
    unit = (units / f"pagetierd-remote{at[:1]}.service").read_text()
    assert f"ExecStart={sys.executable} -m pagetier.tiers.worker --connect %t/pagetier" in unit
    addresses = units / f"pagetierd-remote{at}.service.d/30-addresses.conf"
    assert addresses.read_text().endswith("IPAddressAllow=10.0.0.0/8 localhost\n")
    (units / f"pagetierd-remote{at[:1]}.service").write_text(unit.replace(sys.executable, "/opt/other/bin/python3.12"))
    again = pagetier("install", "--root", root, *words)
    assert again.exit_code == 0 and sys.executable in (units / f"pagetierd-remote{at[:1]}.service").read_text()
    assert "10.0.0.0/8 localhost" in addresses.read_text(), "the administrator's own"
    wrong = pagetier("install", "--root", root, "--remote", "store.example", *words)
    assert wrong.exit_code == 2 and "is no network: write 10.0.0.0/8, or any, localhost" in wrong.output


def test_printing_writes_no_file() -> None:
    result = pagetier("print")
    assert result.exit_code == 0
    for name in ("etc/systemd/system/pagetierd.service", "etc/sysusers.d/pagetier.conf", "etc/pagetier/pagetierd.toml"):
        assert f"# ---- {name}" in result.output


def test_an_installation_without_unit_files_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(unit_files, "_FILES", tmp_path)
    result = pagetier("print")
    assert result.exit_code == 1
    assert f"this installation lacks {tmp_path}/pagetierd.service" in result.output
