"""Two daemons share pages through real stores: what one host stored, the other one loads exactly, or it is a miss."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from eventually import PATIENCE_S, eventually
from fleet_conformance import FIELDS, UNUSED_WITHOUT_KEY, changed
from fleet_host import PATIENT, FleetHost, key_file, keys_of, pages_of
from fleet_pages import OpenedFleet, whole_object
from fleet_questions import hit_in_fleet
from hybrid_engine import TOKENS, HybridEngine, tables
from model_ranks import GROUPS, MODELS, PAGE_TOKENS, PAGES, Group, keys_of_prompt, load_parts, store_part
from pagetier.client import Client, Keys
from pagetier.tiers.base import PageName
from pagetier.tiers.fleet.objects import HEADER_BYTES, object_name
from pagetier.tiers.worker_protocol import FleetOptions
from store_servers import MooncakeServers, S3Server, with_parameters

FRAME = 64 << 10
SIZES = [1, FRAME - 1, FRAME, FRAME + 1, 60 << 20]
SMALL = 3 * FRAME + 5
ONE, TWO, FOUR = GROUPS[:3]


class Fleet(NamedTuple):
    """Two hosts, and the objects behind them."""

    first: FleetHost
    second: FleetHost
    objects: OpenedFleet

    def name(self, keys: Keys) -> str:
        """Returns the name of the object of a single key."""
        return object_name(self.objects.options.prefix, PageName(keys.namespace.digest, bytes(keys.data)))

    def object(self, keys: Keys) -> bytes:
        return whole_object(self.objects, self.name(keys), HEADER_BYTES + SMALL)

    def replace(self, keys: Keys, data: bytes) -> None:
        memory = self.objects.fleet._buffers.memory[: len(data)]
        memory[:] = data
        self.objects.store.remove(self.name(keys))
        assert self.objects.store.put(self.name(keys), memory)


@pytest.fixture(scope="module", params=["s3", "s3-key", "mooncake-key"])
def fleet(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    kind, _, keyed = request.param.partition("-")
    server: S3Server | MooncakeServers = request.getfixturevalue(kind)
    folder = tmp_path_factory.mktemp("hosts")
    path = str(key_file(folder)) if keyed else ""
    prefix = f"hosts-{folder.name}-{request.param}"
    url, more = with_parameters(server.url, prefix=prefix), [*PATIENT]
    more += ["--set", f"remote.key_file={path}"] if keyed else []
    with ExitStack() as stack:
        first, second = (FleetHost(url, stack, *more, arena="192MiB") for _ in range(2))
        objects = OpenedFleet(FleetOptions(url=server.url, prefix=prefix, key_file=path, timeout_s=20, buffers=4 << 20))
        stack.callback(objects.fleet.close)
        yield Fleet(first, second, objects)
        assert first.daemon.findings() == second.daemon.findings() == []


@pytest.mark.parametrize("size", SIZES)
def test_a_page_of_any_size_is_loaded_exactly(fleet: Fleet, size: int) -> None:
    pages = pages_of(1, size)
    fleet.first.share(f"size {size}", pages)
    loaded = fleet.second.load(f"size {size}", 1, size)
    assert loaded.pages == 1 and np.array_equal(loaded.out, pages)


@pytest.mark.parametrize("model", ["gqa"])
@pytest.mark.parametrize(("writers", "readers"), [(ONE, TWO), (TWO, ONE), (TWO, FOUR)], ids=str)
def test_ranks_of_another_degree_load_the_pages(fleet: Fleet, model: str, writers: Group, readers: Group) -> None:
    prompt = 8 * writers.ranks + readers.ranks
    state = MODELS[model].state(prompt, PAGE_TOKENS * PAGES)
    with ExitStack() as stack:
        for rank in writers.of(MODELS[model], PAGE_TOKENS):
            client = stack.enter_context(fleet.first.daemon.client(timeout=PATIENCE_S))
            assert store_part(client, rank, keys_of_prompt(model, rank, prompt), state) == ["STORED"] * PAGES
    fleet.first.wait_shared(PAGES)
    for rank in readers.of(MODELS[model], PAGE_TOKENS):
        keys = keys_of_prompt(model, rank, prompt)
        assert load_parts(fleet.second.client, rank, keys, state) == (PAGES, 0)


def read_in(client: Client, keys: Keys) -> None:
    """Reads pages from the fleet into memory."""
    hit = hit_in_fleet(client, keys, PATIENCE_S)
    assert hit is not None and hit.tokens == len(keys) * keys.namespace.page_tokens
    assert client.prefetch(hit, PATIENCE_S).wait(PATIENCE_S) == len(keys)


def test_three_groups_are_loaded_at_one_token(fleet: Fleet) -> None:
    first, second = (HybridEngine(host.client, "hybrid") for host in (fleet.first, fleet.second))
    assert [result.stored for result in first.groups.store(first.prompt, tables(0, 3))] == [8, 2, 1]
    fleet.first.wait_shared(11)
    for pages, start in zip(second.groups.keys(second.prompt), (0, 6, 3), strict=True):
        read_in(fleet.second.client, pages.keys[start : TOKENS // pages.group.page_tokens])
    second.full[:, :16] = second.window[:, :16] = second.states[:16] = 0
    with second.groups.match(second.prompt) as hit:
        assert (hit.tokens, hit.start_pages) == (TOKENS, (0, 6, 3))
        assert second.groups.load(hit, tables(0, 3), strict=True) == TOKENS
    assert np.array_equal(second.full[:, :16], first.full[:, :16])
    assert np.array_equal(second.window[:, 12:16], first.window[:, 12:16]) and not second.window[:, :12].any()
    assert np.array_equal(second.states[3], first.states[3]) and not second.states[:3].any()


def damages(data: bytes, other: bytes) -> Iterator[tuple[str, bytes]]:
    """Yields damaged forms of an object, each with a name."""
    yield from ((field, changed(data, at)) for field, at in FIELDS.items())
    yield from ((f"{length} bytes", data[:length]) for length in (1, HEADER_BYTES - 1, HEADER_BYTES, len(data) - 1))
    yield from ((f"{more} bytes more", data + bytes(more)) for more in (1, FRAME))
    yield "another page", other
    yield "zeros", bytes(len(data))
    yield "zeros after the header", data[:HEADER_BYTES].ljust(len(data), b"\0")


def test_damaged_objects_are_misses_and_counted(fleet: Fleet) -> None:
    names = [name for name, _ in damages(bytes(HEADER_BYTES + SMALL), b"")]
    unused = {"proof"} if fleet.objects.options.key_file else UNUSED_WITHOUT_KEY
    lost, exact = [name for name in names if name not in unused], ["whole", *unused]
    pages = {name: pages_of(1, SMALL, seed) for seed, name in enumerate(["whole", *names])}
    for name, content in pages.items():
        assert fleet.first.client.store(keys_of(f"damaged {name}", 1), content).stored == 1
    fleet.first.wait_shared(len(pages))
    whole = keys_of("damaged whole", 1)
    for name in names:
        keys = keys_of(f"damaged {name}", 1)
        fleet.replace(keys, dict(damages(fleet.object(keys), fleet.object(whole)))[name])
    before = fleet.second.fresh_report()
    for name in lost:
        assert fleet.second.load(f"damaged {name}", 1, SMALL).pages == 0, name
    for name in exact:
        loaded = fleet.second.load(f"damaged {name}", 1, SMALL)
        assert loaded.pages == 1 and np.array_equal(loaded.out[0], pages[name][0]), name

    absent = {"version", "1 bytes", "127 bytes", "128 bytes"}

    def counted() -> bool:
        """The worker reports what it found wrong a little later than what it read."""
        now = fleet.second.report
        misses = now.unread - before.unread + now.absent - before.absent
        wrong = now.damaged + now.foreign - before.damaged - before.foreign
        read = now.read - before.read
        return (misses, wrong, read) == (len(lost), len(lost) - len(absent), len(exact))

    assert eventually(counted), (before, fleet.second.report)
    assert fleet.second.report.restarts == before.restarts and not fleet.second.report.breaker_open


def test_pages_of_another_key_are_misses(fleet: Fleet, tmp_path: Path) -> None:
    options = fleet.objects.options
    if not options.key_file:
        pytest.skip("a fleet without a key")
    other = key_file(tmp_path, b"x")
    page = pages_of(2, SMALL)
    fleet.first.share("own key", page)
    with ExitStack() as stack:
        more = ("--set", f"remote.key_file={other}", *PATIENT)
        host = FleetHost(with_parameters(options.url, prefix=options.prefix), stack, *more)
        assert host.load("own key", 2, SMALL).pages == 0
        assert eventually(lambda: host.report.foreign == 2), host.report
        assert "remote.key_file" in host.report.note
    loaded = fleet.second.load("own key", 2, SMALL)
    assert loaded.pages == 2 and np.array_equal(loaded.out, page)
