"""Runs pagetierd with other constants than the product's: `--constant TABLE.NAME=NUMBER` beside its options.

A user cannot change them: a table of the configuration has constants beside its settings, and `main` takes a
configuration with other ones from its caller only.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from pagetier.daemon.config.schema import Config
from pagetier.daemon.main import Invocation, main

PROGRAM: Final = (
    f"import sys; sys.path.append({str(Path(__file__).parent)!r}); import daemon_constants;"
    " daemon_constants.run(sys.argv[1:])"
)
"""The program of a process that runs `run`."""


def run(arguments: Sequence[str], **context: Any) -> None:
    """Runs pagetierd until it ends, with these words of a command line and this context of click."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--constant", action="append", default=[])
    found, words = parser.parse_known_args(list(arguments))
    main(words, obj=Invocation(defaults=_with_constants(found.constant)), **context)


def _with_constants(texts: Sequence[str]) -> Config:
    config = Config()
    for text in texts:
        name, _, number = text.partition("=")
        table, key = name.split(".")
        options = getattr(config, table)
        value = type(getattr(options, key))(number)
        config = msgspec.structs.replace(config, **{table: msgspec.structs.replace(options, **{key: value})})
    return config
