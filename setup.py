"""What pyproject.toml can not say: the rooms as packages, and the C extension."""

import os
from pathlib import Path

from setuptools import Extension, find_packages, setup

UNITS = "pagetier.systemd"  # files that `pagetier unit` hands out
PYTHON_ABI = "0x030B0000"  # the stable ABI of CPython 3.11

WARNINGS = ["-Wall", "-Wextra", "-Werror"] if os.environ.get("WERROR") == "1" else []


def manual() -> list[tuple[str, list[str]]]:
    """Where the manual pages go."""
    return [(f"share/man/man{page.suffix[1:]}", [str(page)]) for page in sorted(Path("docs/man").iterdir())]


def documents() -> list[tuple[str, list[str]]]:
    """Where the pages for administrators go, and the files that they speak of."""
    folders = [Path("docs"), *(Path("docs", name) for name in ("design", "kubernetes", "monitoring"))]
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
    extra_link_args=["-pthread"],
    py_limited_api=True,
)

setup(
    package_dir={"": "src"},
    packages=[*find_packages("src"), UNITS],
    package_data={"": ["*.pyi", "py.typed"], UNITS: ["*.service", "*.conf", "*.toml"]},
    include_package_data=False,
    data_files=[*manual(), *documents()],
    ext_modules=[core],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
