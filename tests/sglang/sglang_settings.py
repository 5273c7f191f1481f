"""Resolves settings of SGLang with its plugins loaded, as its launchers do, and prints what became of each.

The first argument is the model's folder. Each line of the input is `[VALUE, [FLAG, ...]]`, and each line of the output
has the settings of the external linker, the page size, what pagetier has logged, and the exception of SGLang, if any.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from typing import Any

from sglang.srt.arg_groups.model_override_base import resolving_view
from sglang.srt.plugins import load_plugins
from sglang.srt.server_args import prepare_server_args

import sglang_imports  # noqa: F401  before SGLang

_LINKER = "unified_cache_external_linker_"


class _Lines(logging.Handler):
    """Keeps the messages."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keeps one message."""
        self.taken.append(record.getMessage())


def resolved(model: str, value: str, flags: list[str]) -> dict[str, Any]:
    """Returns what SGLang makes of its flags and of a value of PAGETIER."""
    os.environ["PAGETIER"] = value
    log, lines, error = logging.getLogger("pagetier.sglang"), _Lines(), ""
    log.addHandler(lines)
    args = prepare_server_args(["--model-path", model, "--device", "cpu", *flags])
    try:
        args.resolve_once()
    except Exception as raised:  # noqa: BLE001  the test compares it
        error = repr(raised)
    log.removeHandler(lines)
    return {
        "on": args.enable_unified_cache_external_linker,
        "backend": getattr(args, f"{_LINKER}backend"),
        "config": getattr(args, f"{_LINKER}config"),
        "page": resolving_view(args).page_size,
        "lines": lines.taken,
        "error": error,
    }


def main() -> None:
    """Answers all lines of the input."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # SGLang prints
    os.environ["PAGETIER"] = "0"  # the entry point hooks SGLang in any case
    load_plugins()
    for line in sys.stdin:
        answers.write(json.dumps(resolved(sys.argv[1], *json.loads(line))) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
