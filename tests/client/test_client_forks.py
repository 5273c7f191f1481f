"""Children that are forked while another thread makes its first calls, which must not import modules."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from eventually import PATIENCE_S
from running_daemon import RunningDaemon

SUPPORT: Final = Path(__file__).parent.parent / "harness"

_CALLS = """
import os, signal, sys, threading
sys.path.insert(0, sys.argv[1])
import numpy as np
from copying_engine import CopyingEngine, slots_of
from eventually import PATIENCE_S
from pagetier.client import Client, FullAttention, Namespace
from pagetier.client.adapters import Blocks, GroupKeys, adopt, reserve_async

ARENA = "64MiB"

space = Namespace(model="test/model", dtype="float32", page_tokens=16)
PAGES = np.ones((10, 1000), np.uint8)

def keys(prompt):
    return space.keys(range(prompt << 16, (prompt << 16) + 160))

client = Client(sys.argv[2], timeout=PATIENCE_S)
assert client.wait_attached(PATIENCE_S)
engine = CopyingEngine(client, 1)
blocks = Blocks(engine.paged, slots_of(2))

def match():
    with client.match(keys(1)) as found:
        adopt(client.session, found.to_handle())
        return found.page_sizes, found.available_pages

def match_groups():
    with client.match_groups([GroupKeys(FullAttention(16), keys(1))]) as found:
        client.prefetch(found)

def load():
    with client.match(keys(1)) as found:
        client.load(found, np.zeros_like(PAGES))
        client.load(found, [bytearray(1000) for _ in PAGES])

def store():
    return client.store(keys(1), PAGES).codes

def store_sizes():
    return client.store(keys(2), [bytes(1000 + page) for page in range(10)])

def store_blocks():
    with client.match(engine.keys(1, 2)) as found:
        client.store(engine.keys(1, 2), blocks)
        client.load(found, blocks)

def reserve():
    with client.reserve(keys(3), 1000) as room:
        if 0 in room.granted:
            room.write(0, PAGES[0])
        room.publish(np.array([0]))
        room.abandon(np.array([1]))

def reserve_later():
    reserve_async(client, keys(4), 1000).cancel()

def prefetch():
    client.prefetch(keys(1)).wait(0.1)

def copy():
    store = engine.copier.store(engine.keys(2, 2), slots_of(2))
    store.wait(PATIENCE_S)
    load = engine.load(engine.keys(2, 2), slots_of(2))
    load.wait(3, PATIENCE_S)

def tell():
    return repr(client), client.attached, client.session
"""

_IMPORTS_NOTHING = (
    _CALLS
    + """
class Watch:
    found = []
    def find_spec(self, name, path=None, target=None):
        self.found.append(name)

sys.meta_path.insert(0, Watch())
globals()[sys.argv[3]]()
print(*Watch.found, flush=True)
os._exit(0)
"""
)

_FORKS = (
    _CALLS
    + """
call = globals()[sys.argv[3]]
children, over = [], threading.Event()

def first_call():
    try:
        call()
    finally:
        over.set()

thread = threading.Thread(target=first_call)
thread.start()
while not over.is_set() and len(children) < 60:
    child = os.fork()
    if not child:
        signal.alarm(30)  # kills a child that hangs
        call()
        os._exit(0)
    children.append(child)
thread.join()
for child in children:
    assert os.waitpid(child, 0)[1] == 0
print(len(children), flush=True)
os._exit(0)
"""
)

CALLS = [line.split()[1][:-3] for line in _CALLS.splitlines() if line.startswith("def ") and line.endswith("():")]


def run(program: str, daemon: RunningDaemon, call: str) -> str:
    command = [sys.executable, "-c", program, str(SUPPORT), str(daemon.socket), call]
    done = subprocess.run(command, capture_output=True, timeout=PATIENCE_S, check=False, env=dict(os.environ))
    assert done.returncode == 0, f"{done.returncode} {done.stderr.decode()}"
    return done.stdout.decode().strip()


@pytest.mark.parametrize("call", CALLS)
def test_no_first_call_imports_a_module(call: str, daemon: RunningDaemon) -> None:
    """A child that is forked during an import can never take that module's lock."""
    assert run(_IMPORTS_NOTHING, daemon, call) == ""


@pytest.mark.parametrize("call", CALLS)
def test_children_forked_during_a_first_call_can_make_the_same_call(call: str, daemon: RunningDaemon) -> None:
    assert int(run(_FORKS, daemon, call)) >= 0
