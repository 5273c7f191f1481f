"""Prints the flags to compile and link a program that runs this Python; nothing if it cannot be linked."""

import sys
import sysconfig
from pathlib import Path

include = Path(sysconfig.get_path("include"))
folder = Path(sysconfig.get_config_var("LIBDIR"))
version = sysconfig.get_config_var("LDVERSION")
libraries = list(folder.rglob(f"libpython{version}.so"))
if (include / "Python.h").exists() and libraries:
    where = libraries[0].parent
    sys.stdout.write(f"-I{include} -L{where} -Wl,-rpath,{where} -lpython{version}" + "\n")
