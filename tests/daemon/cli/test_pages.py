"""Tests `pagetier pages lookup`, `pagetier pages prefetch` and `pagetier pages ls` against real daemons."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bare_engine import SPACE as ENGINES
from bare_engine import Engine
from disk_daemon import FRAME, FRAMES, DiskDaemon, TroubledDaemon, write_through
from eventually import eventually
from fake_worker import impostor
from other_users import ALICE, as_root, output_as
from pagetier.client import Client, Namespace
from pagetier.daemon.cli import ls, prefetch
from pagetier.daemon.cli.daemon_connection import Daemon
from pagetier.daemon.stats.namespace_reads import NamespaceReads
from pagetier.daemon.stats.page_lookup import LEFT_OUT, PagesOnDisk, pages_to_read
from pagetier.shm import clock
from pagetier.shm._core import KEY_BYTES, TierFlag
from pagetier.shm.daemon_link import Link
from pagetier.shm.exit_codes import Exit
from pagetier.shm.protocol import Answer, Fetch, Fetched, FetchOutcome, Forget, Request
from running_daemon import RunningDaemon, namespace

SPACE, OTHER = namespace(), namespace(revision="other")
TOKENS = list(range(16 * 6))
KEYS = SPACE.keys(TOKENS)


@pytest.fixture(scope="module")
def daemon() -> Iterator[DiskDaemon]:
    with write_through() as running:
        running.wait_open()
        yield running


@pytest.fixture(scope="module")
def client(daemon: DiskDaemon) -> Iterator[Client]:
    with daemon.client() as attached:
        attached.store(OTHER.keys(TOKENS[:32]), [bytes(FRAME)] * 2)
        attached.store(KEYS, [bytes(FRAME)] * 6)
        daemon.push_out(attached, KEYS)
        yield attached


@pytest.fixture
def tokens_file(tmp_path: Path) -> str:
    file = tmp_path / "tokens.json"
    file.write_text(json.dumps([*TOKENS, *TOKENS[:16]]))
    return str(file)


def test_pages_are_looked_up_and_read_ahead(daemon: DiskDaemon, client: Client, tokens_file: str) -> None:
    words = ("--namespace", SPACE.digest.hex(), "--tokens-file", tokens_file)
    done = daemon.pagetier("pages", "lookup", *words)
    text = "the first 6 of 7 pages (96 tokens) are here: 0 in memory, 6 only on disk\n"
    assert (done.exit_code, done.output) == (0, text)
    done = daemon.pagetier("pages", "prefetch", *words, "--json")
    assert done.exit_code == Exit.WRONG and json.loads(done.output.splitlines()[0])["in_memory"] == 6
    assert "in no tier" in done.output
    assert json.loads(daemon.pagetier("pages", "lookup", *words, "--json").output)["prefix_memory"] == 6
    with client.match(KEYS) as match:
        assert len(match) == 6


def test_a_lookup_of_keys_of_another_namespace_or_engine_says_so(
    daemon: DiskDaemon, client: Client, tmp_path: Path
) -> None:
    labels = {space.digest: space.label for space in daemon.snapshot().namespaces}
    absent = SPACE.keys(range(1 << 20, (1 << 20) + 16))
    file = tmp_path / "keys"
    for keys, named in ((KEYS, SPACE), (absent, OTHER)):
        file.write_text("\n".join(key.hex() for key in keys))
        done = daemon.pagetier("pages", "lookup", "--namespace", OTHER.digest.hex(), "--keys-file", str(file))
        assert done.exit_code == 0 and labels[named.digest.hex()] in done.stderr
    own = daemon.pagetier("pages", "lookup", "--namespace", SPACE.digest.hex(), "--keys-file", str(file))
    assert "another namespace" in own.stderr
    file.write_text("\n".join(key.hex() for key in KEYS))
    assert not daemon.pagetier("pages", "lookup", "--namespace", SPACE.digest.hex(), "--keys-file", str(file)).stderr


def test_a_lookup_of_tokens_that_are_not_found_says_that_an_engine_may_have_keys_of_its_own(
    daemon: DiskDaemon, client: Client, tmp_path: Path
) -> None:
    file = tmp_path / "tokens"
    file.write_text(json.dumps(list(range(1 << 20, (1 << 20) + 16))))
    (name,) = (space.label for space in daemon.snapshot().namespaces if space.digest == SPACE.digest.hex())
    for command, code in (("lookup", 0), ("prefetch", Exit.WRONG)):
        done = daemon.pagetier("pages", command, "--namespace", SPACE.digest.hex(), "--tokens-file", str(file))
        said = " ".join(done.stderr.split())
        assert (done.exit_code, "pages of vLLM and SGLang are found by their block hashes" in said) == (code, True)
        assert f'`pagetier pages ls "{name}"`' in said and "?" not in said


def test_a_lookup_of_less_than_a_page_names_its_tokens(daemon: DiskDaemon, client: Client, tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text("[1, 2]")
    done = daemon.pagetier("pages", "lookup", "--namespace", SPACE.digest.hex(), "--tokens-file", str(file))
    assert f"{SPACE.page_tokens} tokens" in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("pages", "lookup", "--namespace", SPACE.digest.hex(), "--keys-file"),
        ("pages", "lookup", "--namespace", SPACE.digest.hex(), "--tokens-file"),
        ("pages", "prefetch", "--namespace", SPACE.digest.hex(), "--tokens-file"),
        ("flush", "--yes", "--keys-file"),
        ("pages", "pin", "--namespace", SPACE.digest.hex(), "--keys-file"),
    ],
)
def test_a_file_that_is_no_text_is_a_usage_error(
    daemon: DiskDaemon, client: Client, tmp_path: Path, words: tuple[str, ...]
) -> None:
    file = tmp_path / "keys"
    for content in (KEYS.data.hex().encode("utf-16"), b"\x93NUMPY\x01\x00v\x00" + KEYS.data):
        file.write_bytes(content)
        done = daemon.pagetier(*words, str(file))
        assert done.exit_code == Exit.USAGE and "is no UTF-8 text" in done.output, done


def test_a_byte_order_mark_is_not_a_part_of_a_key(daemon: DiskDaemon, client: Client, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("\n".join(key.hex() for key in KEYS), encoding="utf-8-sig")
    done = daemon.pagetier("pages", "lookup", "--namespace", SPACE.digest.hex(), "--keys-file", str(file))
    assert done.output.startswith("the first 6 of 6 pages")


@pytest.mark.parametrize("form", ["lines", "list"])
def test_keys_are_read_from_lines_or_a_list(daemon: DiskDaemon, client: Client, tmp_path: Path, form: str) -> None:
    keys = [key.hex() for key in KEYS]
    file = tmp_path / "keys"
    file.write_text("# six\n" + "\n".join(keys) if form == "lines" else json.dumps(keys))
    words = ("--namespace", SPACE.digest.hex(), "--keys-file", str(file))
    assert daemon.pagetier("pages", "lookup", *words).output.startswith("the first 6 of 6 pages")
    done = daemon.pagetier("pages", "prefetch", *words)
    assert (done.exit_code, done.output.partition(": ")[2]) == (0, "6 of 6 pages in memory\n")


@pytest.mark.usefixtures("client")
def test_the_digits_that_pages_ls_shows_are_no_key_and_the_error_says_what_prints_one(
    daemon: DiskDaemon, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    (first,) = json.loads(daemon.pagetier("pages", "ls", SPACE.digest.hex(), "--json").output)
    file.write_text(first["key"][:16])
    words = ("pages", "lookup", "--namespace", SPACE.digest.hex(), "--keys-file", str(file))
    refused = " ".join(daemon.pagetier(*words).output.split())
    assert "is no key of 64 hexadecimal digits: `pagetier pages ls NAMESPACE --json` prints whole keys" in refused
    file.write_text(first["key"])
    assert daemon.pagetier(*words).exit_code == Exit.OK


@pytest.mark.usefixtures("client")
@pytest.mark.parametrize(
    ("option", "text", "words"),
    [
        ("--tokens-file", "[4294967296]", "is no JSON list"),
        ("--tokens-file", "1 2 3", "is no JSON list"),
        ("--keys-file", "abc", "line 1 of"),
        ("--keys-file", '["ab"]', "item 1 of"),
    ],
)
def test_a_wrong_file_is_a_usage_error(daemon: DiskDaemon, tmp_path: Path, option: str, text: str, words: str) -> None:
    file = tmp_path / "file"
    file.write_text(text)
    for command in ("lookup", "prefetch"):
        done = daemon.pagetier("pages", command, "--namespace", SPACE.digest.hex(), option, str(file))
        assert (done.exit_code, words in done.output) == (Exit.USAGE, True), done.output


@pytest.mark.parametrize("command", ["lookup", "prefetch"])
def test_a_file_without_an_option_is_told_the_options(daemon: DiskDaemon, command: str) -> None:
    done = daemon.pagetier("pages", command, "--namespace", SPACE.digest.hex(), "p.json")
    assert done.exit_code == Exit.USAGE
    assert '"p.json" needs an option before it: --keys-file or --tokens-file' in " ".join(done.output.split())


@pytest.mark.usefixtures("client")
def test_the_namespace_must_be_one_of_those_that_there_are(daemon: DiskDaemon, tokens_file: str) -> None:
    for wanted, words in (("other", 'no namespace is "other"; there are: '), ("model", "name one by its digest")):
        done = daemon.pagetier("pages", "lookup", "--namespace", wanted, "--tokens-file", tokens_file)
        assert (done.exit_code, words in done.output) == (Exit.WRONG, True), done.output
    assert daemon.pagetier("pages", "lookup", "--namespace", SPACE.digest.hex()).exit_code == Exit.USAGE


@pytest.mark.usefixtures("client")
def test_namespaces_are_listed_with_the_largest_first(daemon: DiskDaemon) -> None:
    listed = json.loads(daemon.pagetier("pages", "ls", "--json").output)
    sizes = [each["memory_bytes"] + each["disk_bytes"] for each in listed]
    assert sizes == sorted(sizes, reverse=True)
    mine = next(each for each in listed if each["digest"] == SPACE.digest.hex())
    assert (mine["label"], mine["disk_pages"], mine["page_tokens"]) == (SPACE.name, 6, 16)
    text = daemon.pagetier("pages", "ls").output
    assert mine["label"] in text and re.search(r"at most \S+ ago", text)


def test_a_disk_tier_that_is_not_open_is_not_called_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with DiskDaemon(FRAMES) as daemon, Engine(daemon) as engine:
        daemon.store_through(engine, range(2))
        daemon.pagetier("flush", "--all", "--tier", "memory", "--yes")
        with daemon.away():
            found = daemon.pagetier("pages", "ls")
            assert "the disk tier is down, so its pages are not listed: " in found.output and found.exit_code == 0
            assert "nothing is stored" not in found.output
        assert ENGINES.name in daemon.pagetier("pages", "ls").output
    impostor(tmp_path, monkeypatch, "there.recv(1)", "time.sleep(3600)")
    with TroubledDaemon(FRAMES) as opening:
        found = opening.pagetier("pages", "ls")
        assert found.output == "the disk tier is being opened, so its pages are not listed yet\n"


def test_the_last_use_of_pages_that_were_found_on_disk_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The index counts them as used in the first moments after the boot, and their namespace as used at the start."""
    unknown = "before the daemon's start"
    with DiskDaemon(FRAMES) as daemon:
        daemon.fill(2)
        daemon.wait_open()
        assert "ago" in daemon.pagetier("pages", "ls").output
        daemon.stop()
        daemon.open()
        # However long the listing takes: two seconds between any two looks at the clock.
        late = count(clock.now_ns(), 2_000_000_000).__next__
        monkeypatch.setattr(ls, "clock", SimpleNamespace(now_ns=late))
        for words in ((), (ENGINES.name,)):
            (row,) = daemon.pagetier("pages", "ls", *words).output.splitlines()[1:]
            assert row.endswith(unknown), row
            (listed,) = json.loads(daemon.pagetier("pages", "ls", *words, "--json").output)
            assert listed["idle_seconds"] is None
        monkeypatch.undo()
        with Engine(daemon) as engine:
            daemon.store_through(engine, range(2, 3))
        listed = json.loads(daemon.pagetier("pages", "ls", "--json").output)
        assert [each["idle_seconds"] is None for each in listed] == [False]
        output = daemon.pagetier("pages", "ls", ENGINES.name).output
        assert unknown in output and " ago" in output


@pytest.mark.parametrize("policy", ["cadence", "lru"])
def test_the_largest_prefixes_of_a_namespace_are_listed(policy: str) -> None:
    with RunningDaemon("4MiB", "64KiB", "--set", f"evict.policy={policy}") as daemon, daemon.client() as client:
        assert json.loads(daemon.pagetier("pages", "ls", "--json").output) == []
        long = SPACE.keys(range(16 * 5))
        client.store(SPACE.keys(range(1000, 1032)), [bytes(FRAME)] * 2)
        client.store(long[:3], [bytes(FRAME)] * 3)
        client.store(long, [bytes(FRAME)] * 5)  # two more pages
        listed = json.loads(daemon.pagetier("pages", "ls", SPACE.name, "--json").output)
        pages = [(each["key"], each["pages"], each["bytes"], each["memory_pages"]) for each in listed]
        short, first = SPACE.keys(range(1000, 1016)).data.hex(), long[0].hex()
        if policy == "cadence":
            assert pages == [(first, 5, 5 * FRAME, 5), (short, 2, 2 * FRAME, 2)]
        else:
            assert sorted(count for _, count, _, _ in pages) == [2, 2, 3] and (first, 3, 3 * FRAME, 3) in pages
        assert 0 <= listed[0]["idle_seconds"] < 60
        *rows, rest = daemon.pagetier("pages", "ls", SPACE.name, "--most", "1").output.splitlines()
        assert len(rows) == 2 and rest == "only the largest 1 are shown: --most shows more"
        assert rest not in daemon.pagetier("pages", "ls", SPACE.name, "--most", str(len(listed))).output
        assert daemon.pagetier("pages", "ls", "other").exit_code == Exit.WRONG
        named = json.loads(daemon.pagetier("pages", "ls", "--namespace", SPACE.name, "--json").output)
        assert [each["key"] for each in named] == [each["key"] for each in listed]
        assert daemon.pagetier("pages", "ls", "--namespace", "other").exit_code == Exit.WRONG
        assert daemon.pagetier("pages", "ls", SPACE.name, "--namespace", SPACE.name).exit_code == Exit.USAGE


def test_many_keys_are_sent_in_parts(client: Client, daemon: DiskDaemon, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("\n".join(f"{number:064x}" for number in range(70_000)))
    assert daemon.pagetier("pages", "unpin", "--keys-file", str(file)).output.startswith("0 pages unpinned")
    done = daemon.pagetier("pages", "prefetch", "--namespace", SPACE.digest.hex(), "--keys-file", str(file))
    assert done.output.startswith("0 pages read: 0 of 70,000 pages in memory")


@pytest.mark.parametrize("other", ["in use", "pinned"])
def test_pages_of_a_namespace_are_read_ahead_the_last_used_first_and_displace_no_page_that_is(other: str) -> None:
    with write_through() as daemon, daemon.client() as client:
        prompts = [SPACE.keys(range(at << 20, (at << 20) + 16 * 8)) for at in range(3)]
        for keys in prompts:
            client.store(keys, [bytes(FRAME)] * 8)
            daemon.push_out(client, keys)
        client.store(OTHER.keys(TOKENS[:32]), [bytes(FRAME)] * 2)
        daemon.until_written()
        with client.match(OTHER.keys(TOKENS[:32])) as match:
            if other == "pinned":
                match.release()
                daemon.pagetier("pages", "pin", "--namespace", OTHER.digest.hex())
                assert eventually(lambda: daemon.snapshot().hints.kept_bytes == 2 * FRAME)
            done = daemon.pagetier("pages", "prefetch", "--namespace", SPACE.digest.hex())
        # 14 of 16 frames are nine tenths, and two are taken.
        assert done.exit_code == Exit.WRONG and "12 pages read: 12 of 24 pages in memory" in done.output
        assert "12 pages not read: a namespace gets at most nine tenths of the arena" in " ".join(done.output.split())
        found = daemon.observer().locate(b"".join(keys.data for keys in (*prompts, OTHER.keys(TOKENS[:32]))))
        assert [each & TierFlag.MEMORY for each in found] == [0] * 8 + [1] * 4 + [0] * 4 + [1] * 10
        if other == "in use":
            again = json.loads(daemon.pagetier("pages", "prefetch", "--namespace", SPACE.name, "--json").stdout)
            assert (again["read"], again["in_memory"]) == (2, 14), "the engine's pages are not in use any more"


@pytest.mark.parametrize("when", ["before", "while"])
def test_pages_that_have_just_left_the_disk_do_not_keep_others_of_the_namespace_from_being_read(
    monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """They leave after the namespace was listed, before they are asked for, or while they are."""
    requests = list[Request]()
    with write_through() as daemon, daemon.client() as client:
        for at in range(3):
            keys = SPACE.keys(range(at << 20, (at << 20) + 16 * 8))
            client.store(keys, [bytes(FRAME)] * 8)
            daemon.push_out(client, keys)
        ask = Daemon.ask

        def drop() -> None:
            daemon.ask(Forget(1, keys[0] + keys[3]))  # of the prompt that was used last

        async def listed(*arguments: Any) -> PagesOnDisk:
            found = await pages_to_read(*arguments)
            if when == "before":
                drop()
            return found

        def asked(self: Daemon, request: Request, *more: Any) -> Any:
            requests.append(request)
            if when == "while" and len(requests) == 1:
                drop()
            return ask(self, request, *more)

        monkeypatch.setattr(prefetch, "pages_to_read", listed)
        monkeypatch.setattr(Daemon, "ask", asked)
        done = daemon.pagetier("pages", "prefetch", "--namespace", SPACE.digest.hex())
    # 14 of 16 frames are nine tenths, and two of these pages are gone.
    assert done.exit_code == Exit.WRONG and "12 pages read: 12 of 24 pages in memory" in done.output
    reasons = f"10 ({LEFT_OUT}), 2 (no longer on disk, or unreadable)"
    assert f"12 pages not read: {reasons}" in " ".join(done.output.split())
    assert len(requests) == {"before": 1, "while": 2}[when]


def test_a_quota_bounds_what_is_read_ahead() -> None:
    alpha = Namespace(model="alpha", dtype="float32", page_tokens=16)
    with write_through("--set", "quota=alpha: arena 0-0.25") as daemon, daemon.client() as client:
        for begin in range(3):
            assert client.store(alpha.keys(range(begin << 20, (begin << 20) + 64)), [bytes(FRAME)] * 4).stored == 4
            daemon.until_written()
        daemon.pagetier("flush", "--all", "--tier", "memory", "--yes")
        done = daemon.pagetier("pages", "prefetch", "--namespace", "alpha")
        assert done.output.startswith("4 pages read: 4 of 12 pages in memory"), done.output


def test_all_namespaces_of_a_model_are_read_ahead() -> None:
    with write_through() as daemon, daemon.client() as client:
        groups = [Namespace(model="test/one", dtype="float32", page_tokens=16, revision=each) for each in "ab"]
        for space in groups:
            client.store(space.keys(TOKENS[:48]), [bytes(FRAME)] * 3)
            daemon.push_out(client, space.keys(TOKENS[:48]))
        done = daemon.pagetier("pages", "prefetch", "--namespace", "one")
        assert (done.exit_code, done.output) == (0, "6 pages read: 6 of 6 pages in memory\n")
        assert daemon.pagetier("pages", "prefetch", "--namespace", "one").output.startswith("0 pages read: 6 of 6")
        assert daemon.pagetier("pages", "prefetch", "--namespace", "another").exit_code == Exit.WRONG


def test_a_disk_that_is_away_is_why_pages_of_a_namespace_are_not_read_or_pinned() -> None:
    with DiskDaemon(FRAMES) as daemon, Engine(daemon) as engine:
        daemon.store_through(engine, range(2))
        with daemon.away():
            read, pinned, unpinned = (
                daemon.pagetier("pages", verb, "--namespace", ENGINES.name) for verb in ("prefetch", "pin", "unpin")
            )
        assert (read.exit_code, pinned.exit_code, unpinned.exit_code) == (Exit.WRONG, Exit.WRONG, Exit.OK)
        assert all("the disk tier is down" in " ".join(done.stderr.split()) for done in (read, pinned))
        assert pinned.stdout.startswith("2 pages pinned;")
        assert "pages that are only on disk are not pinned: the disk tier is" in " ".join(pinned.stderr.split())
        assert not unpinned.stderr, "no page that is only on disk is pinned"


@pytest.mark.parametrize("named", [True, False], ids=["prompt", "namespace"])
def test_a_prefetch_waits_longer_than_the_daemon_may_take(
    daemon: DiskDaemon, client: Client, tokens_file: str, named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gave up after a minute, and said that the daemon does not answer."""
    daemon.push_out(client, KEYS)
    patience = list[tuple[float, float]]()
    ask = Link.ask

    def asked(self: Link, request: Request, timeout: float) -> Answer:
        if isinstance(request, Fetch):
            patience.append((request.timeout, timeout))
        return ask(self, request, timeout)

    monkeypatch.setattr(Link, "ask", asked)
    words = ("--namespace", SPACE.digest.hex(), "--timeout", "10m", *(("--tokens-file", tokens_file) if named else ()))
    daemon.pagetier("pages", "prefetch", *words)
    assert [taken > 60 and taken < most for taken, most in patience] == [True]


@as_root
def test_a_user_who_may_only_watch_reads_nothing_ahead(tokens_file: str) -> None:
    rules = ("--set", f"access.watch_users={ALICE}", "--set", "access.socket_mode=0666")
    with RunningDaemon("1MiB", "64KiB", *rules) as daemon, daemon.client() as client:
        Path(daemon.folder.name).chmod(0o755)
        client.store(KEYS, [bytes(100)] * 6)
        Path(tokens_file).chmod(0o644)
        code = "from pagetier.daemon.cli import main; main(sys.argv[1:])"
        words = ["--socket", str(daemon.socket), "--namespace", SPACE.name, "--tokens-file", "-"]
        code = f"import io; sys.stdin = io.TextIOWrapper(io.BytesIO({json.dumps(TOKENS).encode()!r})); {code}"
        imports = "import pagetier.daemon.cli.pages, pagetier.daemon.cli.lookup, pagetier.daemon.cli.prefetch"
        looked_up = output_as(ALICE, imports, code, "pages", "lookup", *words)
        assert looked_up[0] == 0, looked_up
        status, output = output_as(ALICE, imports, code, "pages", "prefetch", *words)
        assert status == Exit.WRONG and f"user {ALICE} may only watch" in output


def test_a_first_page_without_room_ends_a_prefetch_although_others_came() -> None:
    """Another engine had read a later page. The command asked for the first one again and again."""
    observer: Any = SimpleNamespace(locate=lambda _: bytes([TierFlag.DISK] * 2))
    found = PagesOnDisk(pages=2, in_memory=0, keys=bytes(2 * KEY_BYTES), left_out=0)
    reads = NamespaceReads(observer, found)
    assert reads.next_keys() == found.keys
    reads.take(Fetched(1, bytes([FetchOutcome.NO_ROOM, FetchOutcome.IN_MEMORY])))
    assert not reads.next_keys()
    assert (reads.read, reads.gone, reads.unread) == (0, 0, 2) and "no room" in reads.reason("")
