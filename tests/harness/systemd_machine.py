"""A systemd for a test, PID 1 of new namespaces, with this pagetier installed. See tests/systemd/boot.sh."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Self

from eventually import eventually
from process_states import children_of

REPOSITORY = Path(__file__).resolve().parents[2]
BOOT = REPOSITORY / "tests/systemd/boot.sh"
BOOT_S, COMMAND_S = 120.0, 60.0
PYTHON = f"/opt/python/bin/python{sys.version_info.major}.{sys.version_info.minor}"
ENVIRON = {
    "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
    "PYTHONPATH": "/opt/pagetier/src:/opt/site:/opt/pagetier/tests/harness",
    "LD_LIBRARY_PATH": "/opt/python/lib",
}
_PROGRAMS = {"pagetierd": "pagetier.daemon.main", "pagetier": "pagetier.daemon.cli"}
_NEEDED = ("unshare", "nsenter", "pivot_root", "systemctl", "systemd-sysusers", "setpriv")


@functools.cache
def skip_reason() -> str:
    """Returns why such a machine cannot be made here, or ""."""
    if os.geteuid() != 0:
        return "only root can make namespaces and mounts"
    missing = [tool for tool in _NEEDED if shutil.which(tool) is None]
    if missing or not Path("/lib/systemd/systemd").exists():
        return f"systemd or util-linux is not installed: {', '.join(missing) or '/lib/systemd/systemd'}"
    if "\toverlay" not in Path("/proc/filesystems").read_text():
        return "this kernel has no overlay file system"
    if _cgroups() is None:
        return "no writable cgroup hierarchy of version 2 is mounted"
    with tempfile.TemporaryDirectory(prefix="pagetier-test-") as folder:
        words = [str(BOOT), "try", folder, str(REPOSITORY), sys.base_prefix, sysconfig.get_path("purelib")]
        tried = subprocess.run(words, capture_output=True, text=True, timeout=BOOT_S, check=False)
    return f"cannot make namespaces and mounts: {tried.stderr.strip()}" if tried.returncode else ""


class Machine:
    """A machine that runs until the end of a block. It runs commands as root, or as one of its users."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="pagetier-test-"))
        self._log = self.folder.with_suffix(".log")
        self._cgroup = Path(_cgroups() or "") / self.folder.name

    def run(self, *command: str, user: str = "") -> subprocess.CompletedProcess[str]:
        """Runs a command to its end and returns its result."""
        words = [*self._entering(user), *command]
        return subprocess.run(words, capture_output=True, text=True, env=ENVIRON, timeout=COMMAND_S, check=False)

    def do(self, *command: str, user: str = "") -> str:
        """Runs a command that must succeed, and returns its output."""
        done = self.run(*command, user=user)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def begin(self, *command: str, user: str = "") -> subprocess.Popen[str]:
        """Starts a command that runs beside the test, at most until the machine ends."""
        words = [*self._entering(user), *command]
        return subprocess.Popen(words, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True, env=ENVIRON)

    def show(self, unit: str, name: str) -> str:
        """Returns a property of a unit."""
        return self.do("systemctl", "show", f"--property={name}", "--value", unit).rstrip("\n")

    def write(self, path: str, text: str) -> None:
        """Writes a file, and makes its parent folders."""
        self._path(path).parent.mkdir(parents=True, exist_ok=True)
        self._path(path).write_text(text)

    def read(self, path: str) -> str:
        """Returns the content of a file, "" if it does not exist."""
        with contextlib.suppress(FileNotFoundError):
            return self._path(path).read_text()
        return ""

    def names(self, folder: str) -> list[str]:
        """Returns the names in a folder."""
        return sorted(path.name for path in self._path(folder).iterdir())

    def _path(self, path: str) -> Path:
        """Returns the path by which this process can access a path of the machine."""
        return Path(f"/proc/{self._init}/root{path}")

    def _entering(self, user: str) -> list[str]:
        become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups"] if user else []
        return ["nsenter", f"--target={self._init}", "--all", *become, "env", "--chdir=/"]

    def __enter__(self) -> Self:
        self._cgroup.mkdir()
        base, site = sys.base_prefix, sysconfig.get_path("purelib")
        words = [str(BOOT), "outside", str(self._cgroup), str(self.folder), str(REPOSITORY), base, site]
        with self._log.open("wb") as log:
            self._outer = subprocess.Popen(words, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        self._init = 0
        try:
            self._await_boot()
            self._install()
        except BaseException as error:
            error.add_note(self._log.read_text())
            self.__exit__(None, None, None)
            raise
        return self

    def _await_boot(self) -> None:
        assert eventually(self._is_up, BOOT_S), "systemd did not finish booting"

    def _is_up(self) -> bool:
        assert self._outer.poll() is None, "systemd did not start"
        children = children_of(self._outer.pid)
        if not children or Path(f"/proc/{children[0]}/exe").readlink().name != "systemd":
            return False
        self._init = children[0]
        return self.run("systemctl", "is-system-running").stdout.strip() == "running"

    def _install(self) -> None:
        for program, module in _PROGRAMS.items():
            self.write(f"/usr/bin/{program}", f"#!{PYTHON}\nfrom {module} import main\n\nmain()\n")
            self.do("chmod", "755", f"/usr/bin/{program}")

    def __exit__(self, *_: object) -> None:
        if self._init:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._init, signal.SIGKILL)
        else:
            self._outer.send_signal(signal.SIGKILL)
        self._outer.wait(COMMAND_S)
        assert eventually(lambda: _remove_cgroups(self._cgroup))
        self.folder.rmdir()
        self._log.unlink()


def _cgroups() -> str | None:
    """Returns the mount point of cgroups version 2."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        place = before.split()[4]
        if after.startswith("cgroup2 ") and os.access(place, os.W_OK) and " ro," not in f" {before.split()[5]},":
            return place
    return None


def _remove_cgroups(top: Path) -> bool:
    """Returns False while a process in the cgroups has not ended."""
    try:
        for folder, _, _ in os.walk(top, topdown=False):
            Path(folder).rmdir()
    except OSError:
        return False
    return True
