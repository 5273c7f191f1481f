"""An engine of the fleet's demo: reads what the fleet has of its prompt, computes the rest, and stores its pages.

The demo starts it with a Task and reads its events from its stdout.
"""

from __future__ import annotations

import hashlib
import sys
import time

import msgspec
import numpy as np
import torch

import random_llama
from fleet_messages import FleetLoad, Report, Task
from long_text import PAGE_TOKENS, prompt_of
from messages import Step
from paged_llama import equal_positions, nothing, read, send_event, warm_up
from pagetier.client import Client, FullAttention, Keys
from pagetier.client.adapters import GroupKeys
from pagetier.client.engines.transformers import PrefillCache, namespace_of

WAIT_S = 10.0  # for the daemon, on a busy host


def read_from_fleet(client: Client, keys: Keys) -> FleetLoad:
    """Asks the fleet for the pages of a prompt, and reads those that it has into this host's memory."""
    began = time.perf_counter()
    with client.find_groups([GroupKeys(FullAttention(PAGE_TOKENS), keys)]) as found:
        location = client.locate(found)
    location.wait(WAIT_S)
    hit, asked = location.longest_hit(), time.perf_counter()
    if hit is None:
        return FleetLoad(0, 0, asked - began, 0.0, "")
    located = (hit.tokens - found.available_tokens) // PAGE_TOKENS
    brought = client.prefetch(hit, WAIT_S).wait(WAIT_S)
    return FleetLoad(located, brought, asked - began, time.perf_counter() - asked, "")


def digest_of(client: Client, keys: Keys, page_bytes: int) -> str:
    """Returns the SHA-256 of the bytes of all pages; those that are not in memory count as zeros."""
    pages = np.zeros((len(keys), page_bytes), np.uint8)
    with client.match(keys) as match:
        client.load(match, pages, timeout=0)
    return hashlib.sha256(pages.tobytes()).hexdigest()


def work(task: Task, client: Client) -> Report:
    send_event(Step("build the model"))
    llama = random_llama.build()
    prompts = PrefillCache(client, llama, namespace_of(llama, PAGE_TOKENS, name=random_llama.NAME))
    warm_up(prompts)
    client.wait_attached(WAIT_S)
    prompt = torch.tensor(list(prompt_of(task.engine)))
    keys = prompts.namespace.keys(prompt[:-1])
    send_event(Step("ask the fleet for the prompt's pages, and read them"))
    fleet = read_from_fleet(client, keys)
    run = read(prompts, prompt, lambda: prompts.load(prompt), "load the pages, and compute the rest")
    send_event(Step("store the new pages"))
    stored = prompts.store(prompt, run.cached.cache)
    reference = read(prompts, prompt, nothing, "compute all of it without pagetier")
    return Report(
        parameters=llama.num_parameters(),
        threads=torch.get_num_threads(),
        prompt_tokens=len(prompt),
        memory_tokens=run.cached.pages_from_memory * PAGE_TOKENS,
        disk_tokens=run.cached.pages_from_disk * PAGE_TOKENS,
        positions_equal=equal_positions(run, reference),
        pages_stored=stored.stored,
        page_bytes=prompts.page_bytes,
        first_token_s=run.seconds + fleet.locate_s + fleet.read_s,
        first_token_uncached_s=reference.seconds,
        fleet=msgspec.structs.replace(fleet, digest=digest_of(client, keys, prompts.page_bytes)),
    )


def main() -> None:
    task = msgspec.json.decode(sys.argv[1], type=Task)
    with Client(task.socket, timeout=WAIT_S, name=f"demo-engine-{task.engine}") as client:
        send_event(work(task, client))


if __name__ == "__main__":
    main()
