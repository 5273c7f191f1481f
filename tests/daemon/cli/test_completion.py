"""Shell completion offers commands and options without importing a command."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

HEAVY = ["numpy", "rich", "msgspec", "asyncio", "posix_ipc", "lmdb", "pagetier.shm._core", "pagetier.client"]
RUN = f"""
import json, sys
from pagetier.daemon.cli import main
try:
    main(prog_name="pagetier")
finally:
    json.dump([name for name in {HEAVY} if name in sys.modules], sys.stderr)
"""


def complete(*words: str) -> subprocess.CompletedProcess[str]:
    line = " ".join(("pagetier", *words))
    environ = os.environ | {"_PAGETIER_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(words))}
    return subprocess.run([sys.executable, "-c", RUN], env=environ, capture_output=True, text=True, check=False)


def offered(*words: str) -> list[str]:
    return [line.partition(",")[2] for line in complete(*words).stdout.splitlines()]


def test_commands_are_offered_without_importing_them() -> None:
    done = complete("st")
    assert done.stdout == "plain,stats\n"
    assert json.loads(done.stderr) == []


def test_an_empty_word_offers_all_commands() -> None:
    assert {"stats", "top", "flush", "doctor"} <= set(offered(""))


def test_options_of_the_group_and_of_commands_are_offered() -> None:
    assert "--version" in offered("-")
    assert "--interval" in offered("top", "--in")


def test_the_words_of_a_choice_are_offered() -> None:
    words = "pagetierd --disk-write "
    environ = os.environ | {"_PAGETIERD_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": "2"}
    code = "from pagetier.daemon.main import main; main(prog_name='pagetierd')"
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False)
    assert done.stdout == "plain,evict\nplain,through\nplain,second\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_its_completion_script(shell: str) -> None:
    environ = os.environ | {"_PAGETIER_COMPLETE": f"{shell}_source"}
    done = subprocess.run([sys.executable, "-c", RUN], env=environ, capture_output=True, text=True, check=False)
    assert "_PAGETIER_COMPLETE" in done.stdout, done.stderr
