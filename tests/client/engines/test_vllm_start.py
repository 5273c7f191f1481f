"""Tests the start of the scheduler's half: it shares nothing before the weights are known, and its log says so."""

from __future__ import annotations

import fcntl
import logging
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from disk_daemon import DiskDaemon
from eventually import PATIENCE_S, eventually
from fake_vllm_client import PAGE, request
from fake_vllm_config import group, vllm_config
from pagetier.client import Client
from pagetier.client.engines.attachment_log import AttachmentLog, describe_memory
from pagetier.client.engines.file_digests import FileDigests
from pagetier.client.engines.switch import SettingsOrigin
from pagetier.client.engines.vllm.engine_log import log, route_logs
from pagetier.client.engines.vllm.messages import StoreCommand
from pagetier.client.engines.vllm.namespace import PageShape
from pagetier.client.engines.vllm.pending_scheduler import PendingScheduler
from pagetier.client.engines.vllm.scheduler import SchedulerHalf
from pagetier.client.engines.vllm.settings import ConnectorSettings
from pagetier.client.engines.vllm.setup import namespaces_of, open_scheduler
from pagetier.client.engines.weights import ModelIdentity, WeightsSource
from pagetier.client.engines.weights_thread import WeightsThread
from pagetier.client.reconnect import LinkEvent, LinkState
from pagetier.kernels.layout.page_layout import PageLayout, Rows
from pagetier.shm.protocol import DISK, POPULATING
from running_daemon import RunningDaemon
from vllm_caches import TOKENS, heads_first
from vllm_worker_world import ends, worker_of

SHAPES = (PageShape(PageLayout(PAGE, ((Rows("k", "uint8", 1, 4096 // PAGE),),))),)
GROUPS = SimpleNamespace(kv_cache_groups=[group(PAGE)])
ARENA, ARENA_FRAME = "1MiB", "4KiB"

pytestmark = pytest.mark.usefixtures("empty_daemon")


@pytest.fixture(autouse=True)
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "pagetier"


@pytest.fixture(autouse=True)
def _started_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the files of a test older than the engine."""
    monkeypatch.setattr("pagetier.client.engines.vllm.setup.started_ns", lambda: 1 << 62)


def model(folder: Path, content: bytes = b"weights") -> Path:
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(content)
    return folder


def pending(name: Path | str, socket: Path, **settings: Any) -> PendingScheduler:
    given = ConnectorSettings(socket=str(socket), disk_timeout=0, **settings)
    return open_scheduler(vllm_config(str(name)), GROUPS, SHAPES, SimpleNamespace(hash_block_size=PAGE), given)


def opened(name: Path | str, socket: Path, **settings: Any) -> SchedulerHalf:
    half = pending(name, socket, **settings)
    assert half.wait(PATIENCE_S)
    return half.open()


def store(half: SchedulerHalf, client: Client) -> None:
    keys = half._groups[0].keys(request().block_hashes)
    assert client.store(keys, [b"x"] * len(keys)).stored


@contextmanager
def weights_being_read(cache_folder: Path) -> Iterator[Callable[[], bool]]:
    """Takes the lock that another engine has while it reads weights. Yields whether a thread waits for it."""
    cache_folder.mkdir(parents=True)
    with (cache_folder / "files.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        inode = f":{os.fstat(lock.fileno()).st_ino} "
        yield lambda: any("->" in one and inode in one for one in Path("/proc/locks").read_text().splitlines())


def test_engines_with_copies_of_the_same_weights_share_pages(daemon: RunningDaemon, tmp_path: Path) -> None:
    names = ("one", "copy", "other")
    contents = (b"weights", b"weights", b"changed")
    one, copy, other = (
        opened(model(tmp_path / name, content), daemon.socket) for name, content in zip(names, contents, strict=True)
    )
    with daemon.client() as client:
        store(one, client)
    assert [half.matched(request(), 0) for half in (copy, other)] == [40, 0]
    for half in (one, copy, other):
        half.close()


def test_nothing_is_shared_until_the_weights_are_known(
    daemon: RunningDaemon, tmp_path: Path, cache_folder: Path
) -> None:
    weights = model(tmp_path / "model")
    with weights_being_read(cache_folder) as is_awaited:
        half = pending(weights, daemon.socket)
        assert eventually(is_awaited) and not half.wait(0.0) and not half.ready
    assert half.wait(PATIENCE_S) and half.ready
    late, other = half.open(), opened(weights, daemon.socket)
    with daemon.client() as client:
        store(late, client)
    assert other.matched(request(), 0) == 40
    late.close()
    other.close()


def test_a_reset_before_the_weights_are_known_hides_what_their_files_identify(
    daemon: RunningDaemon, tmp_path: Path, cache_folder: Path
) -> None:
    weights = model(tmp_path / "model")
    with weights_being_read(cache_folder):
        half = pending(weights, daemon.socket)
        half.renew()
    assert half.wait(PATIENCE_S)
    changed, other = half.open(), opened(weights, daemon.socket)
    with daemon.client() as client:
        store(other, client)
    assert changed.matched(request(), 0) == 0
    changed.close()
    other.close()


def test_an_engine_that_ends_before_its_weights_are_known_releases_its_slot(
    daemon: RunningDaemon, tmp_path: Path, cache_folder: Path
) -> None:
    with weights_being_read(cache_folder):
        half = pending(model(tmp_path / "model"), daemon.socket)
        assert eventually(lambda: len(daemon.slots()) == 1)
        half.close()
        assert eventually(lambda: not daemon.slots())


def test_workers_store_in_the_namespaces_of_the_scheduler(daemon: RunningDaemon, tmp_path: Path) -> None:
    """A worker gets the identity in a message, and the salt with each command."""
    waiting = pending(weights := model(tmp_path / "model"), daemon.socket, salt="tenant")
    assert waiting.wait(PATIENCE_S)
    half = waiting.open()
    of_workers = namespaces_of(vllm_config(str(weights)), GROUPS, SHAPES, waiting.identity, "tenant")
    assert of_workers == tuple(one.namespace for one in half._groups)
    half.close()


def test_a_worker_stores_in_the_namespaces_that_it_was_given(daemon: RunningDaemon) -> None:
    with daemon.client() as client:
        worker = worker_of(client, heads_first(), salt="tenant")
        identified = msgspec.structs.replace(worker.rank_groups[0].namespace, revision="weights")
        worker.use_namespaces([identified])
        keys = identified.keys(range(TOKENS))
        worker.store([StoreCommand("storing", 0, 0, keys.data, (1,), salt="tenant")])
        ends(worker)
        with client.match(keys) as match:
            assert len(match) == 1
        assert client.flush(identified)
        assert len(client.match(keys)) == 0, "the page was recorded in another namespace"


def test_weights_without_an_identity_are_private_and_one_line_says_so(
    daemon: RunningDaemon, caplog: pytest.LogCaptureFixture
) -> None:
    one, other = (opened("org/name", daemon.socket) for _ in range(2))
    with daemon.client() as client:
        store(one, client)
    assert one.matched(request(), 0) == 40 and other.matched(request(), 0) == 0
    lines = [line for line in caplog.messages if "shares no pages of org/name" in line]
    assert len(lines) == 2 and '"weights"' in lines[0]
    one.close()
    other.close()


def test_the_setting_identifies_weights(daemon: RunningDaemon) -> None:
    one, same, other = (opened("org/name", daemon.socket, weights=text) for text in ("a", "a", "b"))
    with daemon.client() as client:
        store(one, client)
    assert [half.matched(request(), 0) for half in (same, other)] == [40, 0]
    for half in (one, same, other):
        half.close()


# --- The log


def lines_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "vllm.pagetier"]


def waits_for(caplog: pytest.LogCaptureFixture, count: int) -> Callable[[], bool]:
    return lambda: len(lines_of(caplog)) >= count


def test_one_line_each_says_attached_lost_and_attached_again(
    daemon: RunningDaemon, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        half = opened(model(tmp_path / "llama"), daemon.socket)
        assert eventually(waits_for(caplog, 1))
        daemon.kill()
        assert eventually(waits_for(caplog, 2))
        daemon.start()
        assert eventually(lambda: "attached again" in lines_of(caplog)[-1])
        half.close()
    attached, lost, *late, again = lines_of(caplog)
    assert all("is not attached" in line for line in late), "a start that takes seconds"
    memory, pages = "arena 1.0 MiB, no disk", f"pages of {PAGE} tokens (4 KiB)"
    described = re.escape(f'{memory}, 1 group, {pages}, namespace "llama ')
    place = re.escape(str(daemon.socket))
    weights = "weights [0-9a-f]{12}"
    assert re.fullmatch(rf'pagetier attached to {place} in slot 0: {described}[0-9a-f]{{8}}", {weights}', attached)
    assert lost.startswith("pagetier lost its daemon: ") and "until it is back" in lost
    assert again == attached.replace("attached", "attached again")
    assert not [record for record in caplog.records if record.name == "pagetier.client"]


def test_the_log_says_at_the_start_that_weights_are_read_and_that_it_attached_when_they_are(
    daemon: RunningDaemon, tmp_path: Path, cache_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """No request is needed for either line."""
    weights = model(tmp_path / "llama")
    with caplog.at_level(logging.INFO):
        with weights_being_read(cache_folder):
            half = pending(weights, daemon.socket, switch="1")
            assert eventually(lambda: half._weights._unread > 0)
            assert not half.wait(0)
            (reading,) = lines_of(caplog)
        assert eventually(waits_for(caplog, 2))
        half.close()
    assert f"computes the digest of 7 B of weights of {weights}, once on this machine, and attaches" in reading
    assert reading.startswith("pagetier is on, ") and reading.endswith(
        "; PAGETIER=1 turned it on, PAGETIER=0 turns it off"
    )
    assert lines_of(caplog)[1].startswith(f"pagetier attached to {daemon.socket} in slot 0: arena ")


def test_weights_whose_digest_is_known_are_not_said_to_be_read(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    attaches = threading.Event()

    def identified(_: ModelIdentity) -> None:
        attaches.wait(PATIENCE_S)

    source, origin = WeightsSource("llama", declared="mine"), SettingsOrigin("an option")
    thread = WeightsThread([source], FileDigests(tmp_path), log, origin, identified)
    try:
        with caplog.at_level(logging.INFO):
            thread.log_unless_ended()
    finally:
        attaches.set()
    (line,) = lines_of(caplog)
    assert line == (
        "pagetier is on, and caches nothing yet: it identifies the weights of llama, and attaches when that is done"
    )
    assert thread.wait(PATIENCE_S)


def test_one_line_says_what_was_tried_and_what_to_do_without_a_daemon(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    half = opened(model(tmp_path / "model"), tmp_path / "none.sock")
    assert eventually(waits_for(caplog, 1))
    (line,) = lines_of(caplog)
    assert f"pagetier is not attached: {tmp_path / 'none.sock'}: No such file" in line
    assert 'until a daemon answers: start pagetierd, or, if it has another socket, set "socket" in ' in line
    half.close()


def test_a_socket_that_may_not_be_opened_is_no_reason_to_start_a_daemon(caplog: pytest.LogCaptureFixture) -> None:
    """Its reason says what to do, and the daemon runs."""
    for why in ("a socket: Permission denied: to allow it, do this", "the daemon does not answer"):
        AttachmentLog(log, SettingsOrigin("an option")).on_link(LinkEvent(LinkState.UNREACHABLE, why))
        assert lines_of(caplog)[-1] == f"pagetier is not attached: {why}; nothing is cached until a daemon answers"


@pytest.mark.parametrize(("extras", "disk"), [((), "no disk"), ((DISK,), "disk opening")])
def test_a_disk_that_is_being_opened_is_not_called_absent(extras: tuple[str, ...], disk: str) -> None:
    attached = LinkEvent(LinkState.ATTACHED, "a socket", extras)
    assert describe_memory(None, attached) == f"arena 0 B, {disk}"


def attachment(running: RunningDaemon) -> LinkEvent:
    """Returns the attachment of a client."""
    events: list[LinkEvent] = []
    with Client(running.socket, on_link=events.append):
        assert eventually(lambda: bool(events))
    return events[0]


def test_a_daemon_says_whether_it_has_a_disk(daemon: RunningDaemon) -> None:
    with DiskDaemon() as with_disk:
        assert DISK in attachment(with_disk).extras and DISK not in attachment(daemon).extras


def test_the_log_says_what_turned_it_on_and_where_its_settings_are(
    daemon: RunningDaemon, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        opened(model(tmp_path / "llama"), daemon.socket, switch="mode=load disk_timeout=1s").close()
        opened(model(tmp_path / "other"), tmp_path / "none.sock", switch="1").close()
        assert eventually(waits_for(caplog, 2))
    attached, absent = lines_of(caplog)
    assert attached.endswith('; PAGETIER="mode=load disk_timeout=1s" turned it on, PAGETIER=0 turns it off')
    assert absent.endswith('set "socket" in PAGETIER; PAGETIER=1 turned it on, PAGETIER=0 turns it off')


def test_workers_log_only_that_they_are_rejected(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        for state in LinkState:
            AttachmentLog(log, SettingsOrigin("an option")).on_rejected(LinkEvent(state, "why"))
    assert lines_of(caplog) == ["pagetier is not attached: why; nothing is cached until the daemon accepts this engine"]


def test_an_arena_that_is_being_populated_is_one_line_and_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    populating = LinkEvent(LinkState.REJECTED, POPULATING)
    with caplog.at_level(logging.INFO):
        AttachmentLog(log, SettingsOrigin("an option")).on_link(populating)
        AttachmentLog(log, SettingsOrigin("an option")).on_rejected(populating)
    (line,) = lines_of(caplog)
    assert f"{POPULATING}; nothing is cached until the daemon accepts this engine" in line
    assert [record.levelno for record in caplog.records] == [logging.INFO]


def test_an_engine_that_was_attached_is_not_said_to_cache_nothing(caplog: pytest.LogCaptureFixture) -> None:
    written = AttachmentLog(log, SettingsOrigin("an option"))
    for state in (LinkState.UNREACHABLE, LinkState.ATTACHED, LinkState.LOST, LinkState.UNREACHABLE, LinkState.REJECTED):
        written.on_link(LinkEvent(state, "a socket: Connection refused"))
    before, _, after, rejected = lines_of(caplog)
    assert "; nothing is cached until a daemon answers" in before
    still = "; nothing is stored, and only pages that are still mapped are loaded, until"
    assert f"{still} a daemon answers: start pagetierd" in after and f"{still} the daemon accepts" in rejected


def test_records_of_pagetiers_own_loggers_reach_vllms_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = logging.getLogger("pagetier")
    for name in ("handlers", "propagate", "level"):
        monkeypatch.setattr(ours, name, [] if name == "handlers" else getattr(ours, name))
    route_logs()
    route_logs()
    logging.getLogger("pagetier.client").warning("%d pages", 3)
    assert caplog.messages == ["pagetier: 3 pages"]
    assert len(ours.handlers) == 1
