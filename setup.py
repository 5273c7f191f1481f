"""The parts of the build that pyproject.toml cannot express: the packages, the C extension and the data files."""

import os
import sys
import tempfile
from pathlib import Path

from setuptools import Extension, find_packages, setup

UNITS = "pagetier.systemd"  # the files that `pagetier unit` installs
PYTHON_ABI = "0x030B0000"  # the stable ABI of CPython 3.11

# What an initializer leaves out is zero, which the core relies on.
STRICT = ["-Wall", "-Wextra", "-Werror"]
WARNINGS = STRICT if os.environ.get("WERROR") == "1" else []


def manual() -> list[tuple[str, list[str]]]:
    """Returns the manual pages by their install folder."""
    return [(f"share/man/man{page.suffix[1:]}", [str(page)]) for page in sorted(Path("docs/man").iterdir())]


def documents() -> list[tuple[str, list[str]]]:
    """Returns the documentation for administrators, and the files that it mentions, by their install folder."""
    folders = [Path("docs"), *(Path("docs", name) for name in ("design", "docker", "kubernetes", "monitoring"))]
    pages = [(f"share/doc/pagetier{str(folder)[4:]}", _files_in(folder)) for folder in folders]
    return [*pages, ("share/doc/pagetier", ["CHANGELOG.md"])]


def _files_in(folder: Path) -> list[str]:
    return [str(path) for path in sorted(folder.iterdir()) if path.is_file()]


core = Extension(
    "pagetier.shm._core",
    sources=["src/pagetier/shm/_core.c"],
    depends=sorted(map(str, Path("src/pagetier/shm").rglob("*.h"))),
    include_dirs=["src/pagetier/shm"],
    define_macros=[("Py_LIMITED_API", PYTHON_ABI)],
    extra_compile_args=["-std=gnu11", "-O3", "-fvisibility=hidden", "-pthread", *WARNINGS],
    extra_link_args=["-pthread", "-lm"],
    py_limited_api=True,
)

# Several users install from one checkout, which may not be theirs: what pip runs for a wheel writes nothing to it.
OF_A_WHEEL = {"bdist_wheel", "dist_info", "egg_info"}


def outputs(folder: str) -> dict[str, dict[str, str]]:
    """Returns the options of the commands whose outputs belong into a folder."""
    return {"build": {"build_base": folder}, "egg_info": {"egg_base": folder}} if OF_A_WHEEL & set(sys.argv) else {}


with tempfile.TemporaryDirectory(prefix="pagetier-build-") as temporary:
    setup(
        package_dir={"": "src"},
        packages=[*find_packages("src"), UNITS],
        package_data={"": ["*.pyi", "py.typed"], UNITS: ["*.service", "*.conf", "*.toml", "*.sha256"]},
        include_package_data=False,
        data_files=[*manual(), *documents()],
        ext_modules=[core],
        options={"bdist_wheel": {"py_limited_api": "cp311"}, **outputs(temporary)},
    )
