"""Tests `pagetier flush` against a real daemon."""

from __future__ import annotations

import pytest

from pagetier.client import Client, Namespace
from pagetier.daemon.common.namespaces import means, printable
from pagetier.shm.exit_codes import Exit
from running_daemon import RunningDaemon, namespace
from terminal import pagetier_on_terminal

PAGE = 100_000


def fill(client: Client, space: Namespace, pages: int) -> None:
    keys = space.keys(range(space.page_tokens * pages))
    assert client.store(keys, [bytes(PAGE)] * pages).stored == pages


def pages_of(client: Client, space: Namespace, pages: int) -> int:
    with client.match(space.keys(range(space.page_tokens * pages))) as match:
        return len(match)


def test_a_label_selects_one_namespace(daemon: RunningDaemon, client: Client) -> None:
    one, other = namespace(lora="one"), namespace(lora="other")
    fill(client, one, 3)
    fill(client, other, 2)
    result = daemon.pagetier("flush", "--namespace", one.name, "--yes")
    assert result.exit_code == 0
    assert "3 pages dropped" in result.output
    assert other.name not in result.output
    assert (pages_of(client, one, 3), pages_of(client, other, 2)) == (0, 2)


def test_a_digest_selects_one_namespace(daemon: RunningDaemon, client: Client) -> None:
    space = namespace(lora="digest")
    fill(client, space, 1)
    assert "1 page dropped" in daemon.pagetier("flush", "--namespace", space.digest.hex()[:8].upper(), "--yes").output
    assert pages_of(client, space, 1) == 0


def test_a_model_selects_all_its_namespaces_and_they_are_named(daemon: RunningDaemon, client: Client) -> None:
    spaces = [namespace(lora="a"), namespace(lora="b"), namespace(page_tokens=32)]
    for space in spaces:
        fill(client, space, 2)
    result = daemon.pagetier("flush", "--namespace", "model", "--yes")
    assert "6 pages dropped" in result.output
    assert all(space.name in result.output for space in spaces)
    assert [pages_of(client, space, 2) for space in spaces] == [0, 0, 0]


def test_pages_in_use_are_kept_and_counted(daemon: RunningDaemon, client: Client) -> None:
    space = namespace(lora="in use")
    fill(client, space, 5)
    with client.match(space.keys(range(32))) as match:
        assert len(match) == 2
        result = daemon.pagetier("flush", "--namespace", space.name, "--yes")
        assert "3 pages dropped; 2 pages in use and kept" in result.output
        assert client.load(match, [bytearray(PAGE)] * 2) == 2
    assert daemon.findings() == []
    assert "2 pages dropped" in daemon.pagetier("flush", "--all", "--yes").output


@pytest.mark.parametrize(("pages", "words"), [((1,), "1 page"), ((2, 1), "3 pages")])
def test_all_selects_every_namespace(daemon: RunningDaemon, client: Client, pages: tuple[int, ...], words: str) -> None:
    for number, count in enumerate(pages):
        fill(client, namespace(lora=str(number)), count)
    output = daemon.pagetier("flush", "--all", "--yes").output
    assert f"all namespaces: {words}, " in output and f"{words} dropped\n" in output


@pytest.mark.parametrize("text", ["mod", "nowhere", "", "1234567"])
def test_text_that_matches_nothing_drops_nothing(daemon: RunningDaemon, client: Client, text: str) -> None:
    space = namespace(lora="kept")
    fill(client, space, 1)
    result = daemon.pagetier("flush", "--namespace", text, "--yes")
    assert result.exit_code == Exit.WRONG
    assert space.name in result.output
    assert pages_of(client, space, 1) == 1


def test_without_a_terminal_yes_is_required(daemon: RunningDaemon, client: Client) -> None:
    space = namespace(lora="asked")
    fill(client, space, 1)
    result = daemon.pagetier("flush", "--namespace", space.name)
    assert result.exit_code == Exit.USAGE
    assert "--yes" in result.output
    assert pages_of(client, space, 1) == 1


def test_on_a_terminal_it_asks(daemon: RunningDaemon, client: Client) -> None:
    space = namespace(lora="terminal")
    fill(client, space, 1)
    arguments = ["flush", "--socket", str(daemon.socket), "--namespace", space.name]
    refused = pagetier_on_terminal(arguments, typed="n\n")
    assert (refused.code, pages_of(client, space, 1)) == (Exit.WRONG, 1)
    assert f"{space.name}: 1 page, 97.7 KiB" in refused.text
    agreed = pagetier_on_terminal(arguments, typed="y\n")
    assert (agreed.code, pages_of(client, space, 1)) == (Exit.OK, 0)
    assert "1 page dropped" in agreed.text


def test_a_text_selects_by_label_model_or_digest() -> None:
    digest = bytes.fromhex("1a2b3c4d" + "00" * 28)
    label = "Qwen3-0.6B 1a2b3c4d"
    for text in (None, label, "Qwen3-0.6B", "Qwen/Qwen3-0.6B", "1a2b3c4d", "1A2B3C4D00", digest.hex()):
        assert means(text, label, digest)
    for text in ("Qwen3", "Qwen3-0.6B/", "Qwen3-0.6B ", "1a2b3c4", "1a2b3c4e", "", "B 1a2b3c4d"):
        assert not means(text, label, digest)
    assert means("no-digest", "no-digest", digest)
    for text in ("Qwen/Qwen3-0.6B", "Qwen3-0.6B", "Qwen/Qwen3-0.6B 1a2b3c4d"):
        assert means(text, "Qwen/Qwen3-0.6B 1a2b3c4d", digest)
    for text in ("Qwen", "other/Qwen3-0.6B"):
        assert not means(text, "Qwen/Qwen3-0.6B 1a2b3c4d", digest)


def test_control_characters_of_a_name_are_replaced() -> None:
    assert printable("a\x1b[31m\nb\0 ü") == "a?[31m?b? ü"
