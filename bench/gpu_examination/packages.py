"""Installs from a bundle what this Python lacks, into a folder of its own: `packages.py BUNDLE FOLDER`.

Nothing is downloaded, and the packages of this Python stay as they are. pip decides what is missing; a package that is
there in a version that the project accepts is not installed again.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path


def missing(bundle: Path) -> list[str]:
    """Returns the packages of a bundle that this Python lacks, as name==version."""
    report = json.loads(_pip(bundle, "--dry-run", "--report", "-", "--requirement", str(bundle / "requirements.txt")))
    packages = (each["metadata"] for each in report["install"])
    return sorted(f"{each['name']}=={each['version']}" for each in packages)


def install(bundle: Path, folder: Path) -> list[str]:
    """Installs what is missing into a folder, and returns it."""
    packages = missing(bundle)
    if packages:
        _pip(bundle, "--no-deps", "--no-compile", "--upgrade", "--target", str(folder), *packages)
    return packages


def _pip(bundle: Path, *arguments: str) -> str:
    """Runs `pip install` without an index and without the settings of this machine, and returns its output."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    environment |= {"PIP_CONFIG_FILE": os.devnull, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--find-links", str(bundle)]
    return subprocess.run([*command, *arguments], env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout


def main() -> int:
    """Installs, prints what was installed, and returns the exit code."""
    try:
        for package in install(Path(sys.argv[1]), Path(sys.argv[2])):
            print(json.dumps({"name": "installed", "value": package}), flush=True)
    except subprocess.CalledProcessError as error:  # pip has said why
        return int(error.returncode)
    return 0


if __name__ == "__main__":
    sys.exit(main())
