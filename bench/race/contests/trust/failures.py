"""Eight failures. Each function makes one happen to a system and records what its engines are served.

A page has 1 MiB and 256 tokens, and one content that is right; every byte that an engine loads is compared with it. The
memory has room for 256 pages.
"""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np

from race.contestants.cache import Cache, drop_page_cache, signal_all
from race.contestants.registry import PRIVATE_MEMORY
from race.contests.trust.observation import MIB, PAGE, PAGES, Call, Observation, Scene, seconds_until
from race.engine_process import EngineProcess, Served, fill_page

NOBODY = 65534
FLIPPED = 4096
ROOM = 256
"""Pages that fit into memory."""
SMALL_DISK = 64 * MIB


def writer_killed(scene: Scene, seen: Observation) -> None:
    """Kills an engine that has written half of each page of a prompt, and loads that prompt in another engine."""
    sizes = scene.sizes()
    with scene.make(sizes, scene.folder) as cache, scene.engine(cache, sizes) as reader:
        with scene.engine(cache, sizes) as writer:
            begun = writer.ask("begin_store", 1, PAGES)
            seen.record(begun)
            seen.facts.append(f"{begun.value} of {PAGES} pages were half written when the writer was killed")
            writer.kill()
        at_once = seen.loaded(reader.ask("load", 1, PAGES, timeout=scene.timeouts.call))
        time.sleep(scene.timeouts.recovery)
        later = seen.loaded(reader.ask("load", 1, PAGES, timeout=scene.timeouts.call))
        seen.facts.append(f"served at once: {_of(at_once)}; {scene.timeouts.recovery:.0f} s later: {_of(later)}")
        _store_again(scene, seen, reader, prompt=1)
        if left := [path.name for path in cache.leftovers() if path.suffix and path.is_file() and not cache.pids()]:
            seen.leak = f"{len(left)} temporary files stay"


def _store_again(scene: Scene, seen: Observation, engine: EngineProcess, prompt: int) -> None:
    """Stores a prompt again, and loads it, until its bytes are right."""

    def right() -> bool:
        seen.record(engine.ask("store", prompt, PAGES, timeout=scene.timeouts.call))
        answer = engine.ask("load", prompt, PAGES, timeout=scene.timeouts.call)
        return isinstance(answer.value, Served) and answer.value.right == PAGES

    took = seconds_until(right, scene.timeouts.recovery)
    seen.facts.append(
        f"the prompt can be stored again and is right after {took:.1f} s"
        if took is not None
        else f"the prompt cannot be stored again within {scene.timeouts.recovery:.0f} s"
    )


def disk_flipped(scene: Scene, seen: Observation) -> None:
    """Inverts 4 KiB in the middle of each page on disk, and loads the pages from there."""
    sizes = scene.sizes(disk=1024 * MIB)
    with scene.make(sizes, scene.folder) as cache, scene.engine(cache, sizes) as writer:
        seen.record(writer.ask("store", 1, PAGES))
        if not cache.drop_memory():
            seen.applies = False
            return
        flipped = sum(_flip(file) for file in cache.disk_files())
        drop_page_cache(cache.disk_files())
        seen.facts.append(f"{flipped} of {PAGES} pages were changed on disk")
        with scene.engine(cache, sizes) as reader:
            seen.loaded(reader.ask("load", 1, PAGES, timeout=scene.timeouts.call))


def _flip(file: Path) -> int:
    """Inverts 4 KiB of each page of prompt 1 in a file. Returns how many pages it found by their content."""
    flipped, content = 0, file.read_bytes()
    page = np.empty(PAGE, np.uint8)
    for number in range(PAGES):
        fill_page(page, 1, number)
        begin = content.find(page[: PAGE // 2].tobytes())
        if begin >= 0:
            with file.open("r+b") as opened:
                opened.seek(begin + PAGE // 2 - FLIPPED)
                old = opened.read(FLIPPED)
                opened.seek(begin + PAGE // 2 - FLIPPED)
                opened.write(bytes(255 - byte for byte in old))
            flipped += 1
    return flipped


def burst(scene: Scene, seen: Observation) -> None:
    """Stores twice as many pages as fit, as fast as possible, and looks for what was reported as stored."""
    sizes = scene.sizes()
    prompts = range(2 * ROOM // PAGES)
    with scene.make(sizes, scene.folder) as cache, scene.engine(cache, sizes) as engine:
        answers = [seen.record(engine.ask("store", prompt, PAGES)) for prompt in prompts]
        reported = sum(answer.value or 0 for answer in answers)
        served = [seen.loaded(engine.ask("load", prompt, PAGES)) for prompt in prompts]
        half = len(prompts) // 2
        old, new = (sum((one.right for one in part), 0) for part in (served[:half], served[half:]))
        seen.facts.append(f"{reported} of {2 * ROOM} pages were reported as stored")
        seen.facts.append(f"found afterwards: {old} of the older {ROOM} pages, {new} of the newer {ROOM}")


def server_restarted(scene: Scene, seen: Observation) -> None:
    """Kills the server and starts it again while an engine stores and loads."""
    sizes = scene.sizes()
    with scene.make(sizes, scene.folder) as cache, scene.engine(cache, sizes) as engine:
        if not cache.pids():
            seen.applies = False
            return
        seen.record(engine.ask("store", 1, PAGES))
        signal_all(cache.pids(), signal.SIGKILL)
        killed = time.monotonic()
        restarting = threading.Thread(target=cache.restart)
        restarting.start()
        while restarting.is_alive():
            seen.loaded(engine.ask("load", 1, PAGES, timeout=scene.timeouts.call))
            time.sleep(0.2)
        seen.facts.append(f"the server was ready again {time.monotonic() - killed:.1f} s after it was killed")
        kept = engine.ask("load", 1, PAGES, timeout=scene.timeouts.call)
        seen.facts.append(f"served after that of what was stored before: {_of(seen.loaded(kept))}")
        _hits_again(scene, seen, engine)


def _hits_again(scene: Scene, seen: Observation, engine: EngineProcess) -> None:
    """Measures when the engine that has seen the failure has hits with new pages."""
    numbers = iter(range(100, 100_000))

    def hit() -> bool:
        prompt = next(numbers)
        engine.ask("store", prompt, PAGES, timeout=scene.timeouts.call)
        answer = engine.ask("load", prompt, PAGES, timeout=scene.timeouts.call)
        return isinstance(answer.value, Served) and answer.value.right == PAGES

    took = seconds_until(hit, scene.timeouts.recovery)
    seen.facts.append(
        f"the engine has hits with new pages again after {took:.1f} s"
        if took is not None
        else f"the engine has no hit with new pages within {scene.timeouts.recovery:.0f} s"
    )


def server_stopped(scene: Scene, seen: Observation) -> None:
    """Stops the server with SIGSTOP, and lets an engine look up, load and store."""
    sizes = scene.sizes()
    with scene.make(sizes, scene.folder) as cache, scene.engine(cache, sizes) as engine:
        if not cache.pids():
            seen.applies = False
            return
        seen.record(engine.ask("store", 1, PAGES))
        seen.record(engine.ask("load", 1, PAGES))
        signal_all(cache.pids(), signal.SIGSTOP)
        try:
            _call_stopped(scene, seen, engine)
        finally:
            signal_all(cache.pids(), signal.SIGCONT)
        if not seen.unanswered:
            _hits_again(scene, seen, engine)


def _call_stopped(scene: Scene, seen: Observation, engine: EngineProcess) -> None:
    for what, prompt in (("lookup", 1), ("load", 1), ("store", 2)):
        answer = engine.ask(what, prompt, PAGES, timeout=scene.timeouts.call)
        if what == "load":
            seen.loaded(answer)
        seen.record(answer)
        if not answer.answered:
            seen.facts.append(f"{what} had no answer within {scene.timeouts.call:.0f} s")
            return
        pages = answer.value.right if isinstance(answer.value, Served) else answer.value or 0
        seen.calls.append(Call(what, answer.seconds, pages))
        result = _of(answer.value) if isinstance(answer.value, Served) else f"{answer.value} pages"
        seen.facts.append(f"{what} took {1e3 * answer.seconds:.1f} ms: {answer.error or result}")


def reader_stopped(scene: Scene, seen: Observation) -> None:
    """Stops an engine in the middle of a load, and then kills it; another engine needs the memory."""
    sizes = scene.sizes()
    with scene.make(sizes, scene.folder) as cache, scene.engine(cache, sizes) as writer:
        with scene.engine(cache, sizes) as reader:
            seen.record((writer if cache.pids() else reader).ask("store", 1, PAGES))
            pinned = seen.record(reader.ask("begin_load", 1, PAGES))
            reader.signal(signal.SIGSTOP)
            stored = _fill(seen, writer, first=10)
            seen.facts.append(
                f"{stored} of {2 * ROOM} new pages were stored while the stopped reader had {pinned.value} pages"
            )
            newest = 10 + 2 * ROOM // PAGES - 1
            seen.loaded(writer.ask("load", newest, PAGES, timeout=scene.timeouts.call))
            reader.kill()
        gone = seconds_until(lambda: _evicted(seen, writer), scene.timeouts.recovery)
        if gone is None:
            seen.leak = (
                f"the dead reader's pages were not evicted within {scene.timeouts.recovery:.0f} s, "
                "when the race stopped waiting"
            )
        else:
            seen.facts.append(f"the dead reader's pages were evicted {gone:.1f} s later")


def _fill(seen: Observation, engine: EngineProcess, first: int) -> int:
    answers = [engine.ask("store", first + at, PAGES) for at in range(2 * ROOM // PAGES)]
    return sum(seen.record(answer).value or 0 for answer in answers)


def _evicted(seen: Observation, engine: EngineProcess) -> bool:
    """Stores more, and returns whether the pages of prompt 1 are gone."""
    _fill(seen, engine, first=time.monotonic_ns() % 10**9 + 1000)
    return not engine.ask("lookup", 1, PAGES).value


def disk_full(scene: Scene, seen: Observation) -> None:
    """Gives the system a file system of 64 MiB for a disk tier of 1 GiB, stores 256 MiB, and loads everything."""
    small, sizes = scene.folder / "small", scene.sizes(disk=1024 * MIB)
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK}", "tmpfs", str(small)], check=True)
    try:
        with scene.make(sizes, small) as cache, scene.engine(cache, sizes) as engine:
            stored = sum(seen.record(engine.ask("store", prompt, PAGES)).value or 0 for prompt in range(ROOM // PAGES))
            time.sleep(scene.timeouts.recovery / 4)
            for prompt in range(ROOM // PAGES):
                seen.loaded(engine.ask("load", prompt, PAGES, timeout=scene.timeouts.call))
            seen.facts.append(f"{stored} of {ROOM} pages were reported as stored")
            _after_full(seen, cache)
    finally:
        subprocess.run(["umount", "--lazy", str(small)], check=True)


def _after_full(seen: Observation, cache: Cache) -> None:
    dead = [pid for pid in cache.pids() if not Path(f"/proc/{pid}").exists()]
    if dead:
        seen.facts.append("the server has ended")
    if left := [path for path in cache.leftovers() if not cache.pids()]:
        seen.leak = f"{len(left)} incomplete files stay on the full disk"


def unknown_user(scene: Scene, seen: Observation) -> None:
    """Lets a process of another user look up, load and store. Folders have the usual mode, 0755."""
    sizes = scene.sizes(disk=1024 * MIB)
    scene.folder.chmod(0o755)
    with scene.make(sizes, scene.folder) as cache, scene.engine(cache, sizes) as owner:
        seen.record(owner.ask("store", 1, PAGES))
        for folder in scene.folder.rglob("*"):
            if folder.is_dir():
                folder.chmod(0o755)
        with scene.engine(cache, sizes, NOBODY) as visitor:
            if visitor.opened.error or not visitor.opened.answered:
                seen.facts.append(f"the other user cannot connect: {visitor.opened.error or 'no answer'}")
                return
            found = seen.record(visitor.ask("lookup", 1, PAGES, timeout=scene.timeouts.call))
            served = seen.loaded(visitor.ask("load", 1, PAGES, timeout=scene.timeouts.call))
            stored = seen.record(visitor.ask("store", 2, PAGES, timeout=scene.timeouts.call))
            seen.facts.append(
                f"the other user finds {found.value or 0}, loads {served.right} and stores {stored.value or 0} pages"
                + (" (stores go to this engine's own memory)" if seen.system in PRIVATE_MEMORY else "")
            )


def _of(served: Served) -> str:
    parts = [
        f"{count} {name}" for name, count in zip(("right", "wrong", "missed"), _counts(served), strict=True) if count
    ]
    return ", ".join(parts) or "nothing"


def _counts(served: Served) -> tuple[int, int, int]:
    return served.right, served.wrong, served.missed


class Failure(msgspec.Struct, frozen=True):
    """A failure: its title in the report, and what makes it happen."""

    title: str
    happen: Callable[[Scene, Observation], None]


FAILURES: dict[str, Failure] = {
    "writer_killed": Failure("a writer is killed half-way", writer_killed),
    "disk_flipped": Failure("4 KiB of each page are inverted on disk", disk_flipped),
    "burst": Failure("twice the memory is stored in a burst", burst),
    "server_restarted": Failure("the server is killed and restarted under load", server_restarted),
    "server_stopped": Failure("the server is stopped (SIGSTOP)", server_stopped),
    "reader_stopped": Failure("a reader is stopped, then killed", reader_stopped),
    "disk_full": Failure("the disk is full", disk_full),
    "unknown_user": Failure("a process of another user asks", unknown_user),
}
