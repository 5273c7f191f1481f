"""The files that `pagetier unit` installs: sandboxed, valid, and the same for a tenant."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pagetier.daemon.cli import main
from pagetier.daemon.cli import unit as unit_command
from pagetier.daemon.cli.unit import with_checksum
from pagetier.daemon.config.load import load

UNITS = Path(__file__).resolve().parents[2] / "systemd"
SERVICES = sorted(path.name for path in UNITS.glob("*.service"))
WORST = 15  # tenths
DROP_IN = "etc/systemd/system/pagetierd@acme.service.d/metrics-on-localhost.conf"
analyses = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")


def pagetier(*words: str) -> Result:
    return CliRunner().invoke(main, ["unit", *words])


def lines_of(name: str) -> list[str]:
    text = (UNITS / name).read_text()
    return [line for line in text.splitlines() if line and not line.startswith("#")]


@analyses
@pytest.mark.parametrize("name", SERVICES)
def test_each_service_is_sandboxed(name: str) -> None:
    command = ["systemd-analyze", "security", "--offline=yes", f"--threshold={WORST}", "--no-pager", str(UNITS / name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Overall exposure level" in done.stdout


@analyses
def test_a_service_without_sandboxing_exceeds_the_limit(tmp_path: Path) -> None:
    soft = tmp_path / "soft.service"
    soft.write_text(re.sub("(?m)^Restrict.*\n|^Protect.*\n", "", (UNITS / "pagetierd.service").read_text()))
    command = ["systemd-analyze", "security", "--offline=yes", f"--threshold={WORST}", "--no-pager", str(soft)]
    assert subprocess.run(command, capture_output=True, check=False).returncode != 0


@analyses
def test_systemd_accepts_all_units(tmp_path: Path) -> None:
    for name in SERVICES:
        text = (UNITS / name).read_text().replace("/usr/bin/pagetierd", "/bin/true").replace("%i", "t")
        (tmp_path / name.replace("@", "@t")).write_text(re.sub("(?m)^Documentation=.*\n|^(User|Group)=.*\n", "", text))
    command = ["systemd-analyze", "verify", *map(str, sorted(tmp_path.iterdir()))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert [line for line in done.stderr.splitlines() if "pagetierd" in line] == []


def test_no_unit_has_a_directive_that_would_break_the_service() -> None:
    for name in SERVICES:
        lines = lines_of(name)
        assert not [line for line in lines if line.startswith(("DynamicUser=", "PrivateUsers=", "RemoveIPC="))]
        assert any(line.startswith("User=pagetier") for line in lines)
    assert not list(UNITS.glob("*.socket"))


def test_all_services_have_the_same_sandboxing() -> None:
    hard = re.compile(
        "Protect|Private|Restrict(?!Prevent)|SystemCall|NoNew|Capability|Ambient|Device|IPAddress|Memory|Lock|Keyring|UMask"
    )
    kinds = {name: [line for line in lines_of(name) if hard.match(line)] for name in SERVICES}
    first, *others = kinds.values()
    assert len(first) > 25
    assert all(other == first for other in others)


def test_a_tenants_unit_differs_from_the_plain_one_only_in_names() -> None:
    def named(line: str) -> str:
        return re.sub(
            r"pagetier(d?-memory|d-give-back|d)?[-@]%i",
            lambda found: f"pagetier{found[1] or ''}",
            line.replace("%i.toml", "pagetierd.toml"),
        )

    for name in ("pagetierd.service", "pagetierd-memory.service", "pagetierd-give-back.service"):
        own = ("Description=", "Environment=PAGETIER")
        plain = [line for line in lines_of(name) if not line.startswith(own)]
        assert plain == [named(line) for line in lines_of(name.replace(".", "@.")) if not line.startswith(own)]


def test_the_example_is_a_valid_configuration(tmp_path: Path) -> None:
    text = (UNITS / "pagetierd.toml").read_text().replace('["pagetier"]', '["root"]')
    file = tmp_path / "pagetierd.toml"
    file.write_text(text)
    assert load(file, {}, {}).arena.size == 1 << 30
    spelled_out = re.sub(r"(?m)^# (?=[a-z_]+ = )", "", text)
    file.write_text(spelled_out.replace('"monitoring"', '"root"').replace('"vllm"', '"root"'))
    config = load(file, {}, {})
    assert config.disk.size == 100 << 30
    assert config.access.watch_groups == (0,)


def test_a_second_installation_keeps_modified_files(tmp_path: Path) -> None:
    first = pagetier("install", "--root", str(tmp_path))
    assert first.exit_code == 0, first.output
    unit = tmp_path / "etc/systemd/system/pagetierd.service"
    config = tmp_path / "etc/pagetier/pagetierd.toml"
    program = Path(sys.executable).with_name("pagetierd")
    assert f"ExecStart={program} --config" in unit.read_text()
    assert unit.stat().st_mode & 0o777 == 0o644
    config.write_text("# mine\n")
    assert "installed" not in pagetier("install", "--root", str(tmp_path)).output
    unit.write_text("# mine, too\n")
    changed = pagetier("install", "--root", str(tmp_path))
    assert changed.exit_code == 1
    assert "pagetierd.service; --force replaces" in changed.output
    assert unit.read_text() == "# mine, too\n"
    assert pagetier("install", "--root", str(tmp_path), "--force").exit_code == 0
    assert "ExecStart=" in unit.read_text()
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


@pytest.mark.parametrize(
    ("file", "own", "plain"),
    [
        ("etc/pagetier/acme.toml", '# listen = "/run/pagetier-acme/metrics.sock"', "/run/pagetier/"),
        ("etc/pagetier/acme.toml", "`systemctl reload pagetierd@acme`", "reload pagetierd`"),
        ("etc/pagetier/acme.toml", "`pagetier unit install --tenant acme --metrics`", "install --metrics"),
        (DROP_IN, "/etc/systemd/system/pagetierd@acme.service.d/", "pagetierd.service.d"),
        (DROP_IN, 'metrics.listen = "/run/pagetier-acme/metrics.sock"', "/run/pagetier/"),
        (DROP_IN, "`pagetier unit install --tenant acme --metrics`", "install --metrics"),
        ("etc/sysusers.d/pagetier-acme.conf", "configuration of acme.toml", "pagetierd.toml"),
    ],
)
def test_a_tenants_files_name_only_the_tenants_paths(tmp_path: Path, file: str, own: str, plain: str) -> None:
    assert pagetier("install", "--root", str(tmp_path), "--tenant", "acme", "--metrics").exit_code == 0
    text = (tmp_path / file).read_text()
    assert (own in text, plain in text) == (True, False), text


@pytest.mark.parametrize(("words", "service"), [((), "pagetierd"), (("--tenant", "acme"), "pagetierd@acme")])
def test_a_metrics_port_needs_a_drop_in(tmp_path: Path, words: tuple[str, ...], service: str) -> None:
    folder = tmp_path / f"etc/systemd/system/{service}.service.d"
    assert pagetier("install", "--root", str(tmp_path), *words).exit_code == 0
    assert not folder.exists()
    assert pagetier("install", "--root", str(tmp_path), "--metrics", *words).exit_code == 0
    drop_in = folder / "metrics-on-localhost.conf"
    assert "RestrictAddressFamilies=AF_INET" in drop_in.read_text()
    drop_in.write_text(with_checksum("# of an earlier release\n"))
    assert f"installed {drop_in}" in pagetier("install", "--root", str(tmp_path), *words).output
    assert "RestrictAddressFamilies=AF_INET" in drop_in.read_text()
    assert f"{folder.name}/metrics-on-localhost.conf\n# A drop-in" in pagetier("print", "--metrics", *words).output


def test_printing_writes_no_file() -> None:
    result = pagetier("print")
    assert result.exit_code == 0
    for name in ("etc/systemd/system/pagetierd.service", "etc/sysusers.d/pagetier.conf", "etc/pagetier/pagetierd.toml"):
        assert f"# ---- {name}" in result.output


def test_an_installation_without_unit_files_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(unit_command, "_FILES", tmp_path)
    result = pagetier("print")
    assert result.exit_code == 1
    assert f"this installation lacks {tmp_path}/pagetierd.service" in result.output
