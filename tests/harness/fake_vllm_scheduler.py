"""A scheduler that allocates blocks as vLLM's does, with the parts of vLLM's objects that the connector reads."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from enum import Enum
from types import SimpleNamespace

from fake_vllm_requests import FINISHED, LOADING, PREEMPTED, RUNNING, WAITING, Request, Step
from pagetier.client.engines.vllm.scheduler import SchedulerHalf
from pagetier.client.groups import Group, Recurrent, grain_of
from vllm_block_pool import Block, Pool
from vllm_expected_blocks import Computed, Tokens


class Turn(Enum):
    """When the scheduler considers a request whose load has ended: before the other waiting requests, or after them."""

    LOADED_FIRST = 1
    LOADED_LAST = 2


class Scheduler:
    """The scheduler.

    Attributes:
        lag: The number of steps that are scheduled before the output of the first one arrives.
        offers: Whether the scheduler offers states at boundaries.
        delayed: The requests of this step that the half wants to be asked for again.
    """

    turn = Turn.LOADED_FIRST

    def __init__(
        self, half: SchedulerHalf, kinds: Sequence[Group], *, hash_tokens: int, blocks: int, budget: int, offers: bool
    ) -> None:
        self.half, self.kinds, self.hash_tokens, self.budget = half, tuple(kinds), hash_tokens, budget
        self.pool = Pool(blocks)
        self.blocks = blocks
        self.offers = offers
        self.grain = grain_of(kinds)
        self.requests: dict[str, Request] = {}
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.received: dict[str, bool] = {}
        self.delayed: list[str] = []
        self.queries = self.external_hits = 0
        self._offered: dict[str, list[tuple[int, int, int]]] = {}
        self._this_step: set[object] = set()

    def add(self, name: str, future: Tokens, prompt: int) -> Request:
        request = Request(name, future, prompt, self.hash_tokens, len(self.kinds))
        self.requests[name] = request
        self.waiting.append(request)
        return request

    # ---- a step

    def schedule(self) -> Step:
        step, self._left = Step(), self.budget
        self._offered, self._this_step, self.delayed = {}, set(), []
        self._cached: list[tuple[Request, Sequence[Sequence[int]], bool]] = []
        preempted = False
        for request in list(self.running):
            if request.state == RUNNING:
                preempted |= self._go_on(request, step)
        if not preempted:
            self._start_waiting(step)
        cached = [(request, new, resumed) for request, new, resumed in self._cached if request.state == RUNNING]
        step.scheduled_cached_reqs = SimpleNamespace(
            req_ids=[request.request_id for request, *_ in cached],
            new_block_ids=[new if any(new) else None for _, new, _ in cached],
            resumed_req_ids={request.request_id for request, _, resumed in cached if resumed},
        )
        if self.offers:
            step.kv_connector_block_state = SimpleNamespace(boundary_state_offloads=self._offered)  # type: ignore[attr-defined]
        return step

    def advance(self, step: Step) -> None:
        """Updates the requests after the metadata of a step was built, as vLLM does."""
        for name, tokens in step.num_scheduled_tokens.items():
            request = self.requests[name]
            begins = request.num_computed_tokens
            step.computed.append(Computed(name, request.future, begins, begins + tokens, request.ids()))
            step.preemptions[name] = request.preemptions
            request.num_computed_tokens += tokens
            request.in_flight += tokens
            if request.num_computed_tokens == request.num_tokens + request.placeholders:
                request.placeholders += 1

    def update(self, step: Step) -> None:
        """Processes the worker's output of a step."""
        for name, whole in step.loaded.items():
            if not whole and (request := self.requests[name]).state == LOADING:
                request.num_computed_tokens = 0
        for one in step.computed:
            request = self.requests.get(one.request)  # type: ignore[assignment]
            if request is not None:
                self._hear(request, one, stale=request.preemptions != step.preemptions[one.request])
        self.half.failed({name for name, whole in step.loaded.items() if not whole}, frozenset())
        self.half.loaded(step.loaded)
        for name, whole in step.loaded.items():
            if self.requests[name].state == LOADING:
                self.received[name] = whole
            else:
                self._free(self.requests[name])
        for name in step.stored:
            self._free(self.requests[name])

    def finish(self, request: Request) -> None:
        """Finishes or aborts a request."""
        late = request.state == LOADING and self.received.pop(request.request_id, None) is None
        if request in self.running:
            self.running.remove(request)
        if request in self.waiting:
            self.waiting.remove(request)
        request.state = FINISHED
        self._skip(request)
        ids = request.ids()
        computed = [
            row if isinstance(kind, Recurrent) else row[: -(-request.num_computed_tokens // kind.page_tokens)]
            for kind, row in zip(self.kinds, ids, strict=True)
        ]
        late |= self.half.finished(request, computed)
        if not late:
            self._free(request)

    def _hear(self, request: Request, one: Computed, *, stale: bool) -> None:
        request.in_flight -= one.ends - one.begins
        if request.is_finished() or one.ends != request.num_tokens:
            return
        request.num_tokens += 1
        request.hash()
        request.placeholders -= not stale
        if request.num_tokens == len(request.future):
            self.finish(request)

    # ---- progress of requests

    def _go_on(self, request: Request, step: Step) -> bool:
        """Schedules a running request. Returns whether another request was preempted for it."""
        tokens = min(request.num_tokens + request.placeholders - request.num_computed_tokens, self._left)
        tokens = self._aligned(request, min(tokens, len(request.future) - 1 - request.num_computed_tokens))
        if tokens <= 0:
            return False
        preempted = False
        while (new := self._extended(request, request.num_computed_tokens + tokens)) is None:
            victim = self.running[-1]
            self._preempt(victim)
            preempted = True
            if victim is request:
                return True
        self._cached.append((request, new, False))
        self._count(request, tokens, step)
        return preempted

    def _preempt(self, victim: Request) -> None:
        self.running.remove(victim)
        self._give_all(victim)
        victim.state, victim.num_computed_tokens = PREEMPTED, 0
        victim.placeholders = 0
        victim.preemptions += 1
        self.waiting.appendleft(victim)

    def _start_waiting(self, step: Step) -> None:
        # Loaded requests have blocks already.
        for request in sorted(self.waiting, key=lambda one: (one.state != LOADING) is (self.turn is Turn.LOADED_FIRST)):
            if (request.state == LOADING and not self._promote(request)) or request.in_flight:
                continue
            if not self._left or not self._take_in(request, step):
                return

    def _take_in(self, request: Request, step: Step) -> bool:
        """Returns False if there are too few blocks for the request, True also if it waits for something else."""
        fresh = not request.num_computed_tokens
        if fresh:
            hit, rows = self._local(request)
            answer = self.half.matched(request, hit)
            if answer is None:
                self.delayed.append(request.request_id)
                return True
            if answer:
                return self._begin_load(request, rows, hit, answer)
            request.rows = [[self.pool.share(block) for block in row] for row in rows]
            request.num_computed_tokens = hit
        started = self._start(request, step)
        if not started and fresh:
            self._back(request)
        if (
            not started and not self.running
        ):  # vLLM verifies before a load that blocks for the next tokens will be available
            for other in self.waiting:
                if other is not request and other.state != LOADING:
                    self._back(other)
        return started

    def _back(self, request: Request) -> None:
        self._give_all(request)
        request.num_computed_tokens = 0

    def _start(self, request: Request, step: Step) -> bool:
        tokens = self._aligned(request, min(request.num_tokens - request.num_computed_tokens, self._left))
        if tokens <= 0 or self._extended(request, request.num_computed_tokens + tokens) is None:
            return False
        self.half.allocated(request, request.rows, 0)
        if not request.preemptions:  # vLLM counts resumed requests separately
            self.queries += 1
            self.external_hits += request.external
        self.waiting.remove(request)
        self.running.append(request)
        if request.state == WAITING:
            computed = request.num_computed_tokens
            new = SimpleNamespace(req_id=request.request_id, block_ids=request.ids(), num_computed_tokens=computed)
            step.scheduled_new_reqs.append(new)
        else:
            self._cached.append((request, request.ids(), True))
        request.state = RUNNING
        self._count(request, tokens, step)
        return True

    def _count(self, request: Request, tokens: int, step: Step) -> None:
        step.num_scheduled_tokens[request.request_id] = tokens
        self._left -= tokens

    def _aligned(self, request: Request, tokens: int) -> int:
        """Returns the tokens to schedule. With recurrent state, chunks of a prompt end at page boundaries."""
        sizes = [kind.page_tokens for kind in self.kinds if isinstance(kind, Recurrent)]
        begins = request.num_computed_tokens
        if not sizes or begins >= max(request.num_prompt_tokens, request.num_tokens - 1):
            return tokens
        last = request.num_tokens // self.grain * self.grain
        if begins + tokens < last:
            return (begins + tokens) // self.grain * self.grain - begins
        return last - begins if begins < last < begins + tokens else tokens

    # ---- blocks

    def _extended(self, request: Request, ends: int) -> list[list[int]] | None:
        """Returns the new blocks up to `ends`, or None if there are too few."""
        self._skip(request)
        missing = [self._missing(kind, row, ends) for kind, row in zip(self.kinds, request.rows, strict=True)]
        if sum(sum(new) for new in missing) > len(self.pool.free):
            return None
        news = []
        for row, new in zip(request.rows, missing, strict=True):
            blocks = [self.pool.take() if real else self.pool.null for real in new]
            row.extend(blocks)
            news.append([block.block_id for block in blocks])
        self._hash(request, min(ends, request.num_tokens))
        return news

    def _missing(self, kind: Group, row: list[Block], ends: int) -> list[bool]:
        more = -(-ends // kind.page_tokens) - len(row)
        if isinstance(kind, Recurrent) and more > 0:
            return [False] * (more - 1) + [True]
        return [True] * more

    def _skip(self, request: Request) -> None:
        """Replaces blocks from which nothing will be computed any more."""
        seen = max(0, request.num_computed_tokens - request.in_flight)
        for kind, row in zip(self.kinds, request.rows, strict=True):
            for page in range(min(len(row), max(0, seen - kind.needs) // kind.page_tokens)):
                self.pool.give(row[page])
                row[page] = self.pool.null

    def _hash(self, request: Request, ends: int) -> None:
        for at, (kind, row) in enumerate(zip(self.kinds, request.rows, strict=True)):
            for page in range(min(ends // kind.page_tokens, len(row))):
                name = self._name(request, at, page)
                if self.pool.note(row[page], name) and isinstance(kind, Recurrent):
                    self._this_step.add(name)
                    offer = (at, row[page].block_id, (page + 1) * kind.page_tokens)
                    self._offered.setdefault(request.request_id, []).append(offer)

    def _name(self, request: Request, at: int, page: int) -> object:
        ratio = self.kinds[at].page_tokens // self.hash_tokens
        return at, request.block_hashes[(page + 1) * ratio - 1]

    def _local(self, request: Request) -> tuple[int, list[list[Block]]]:
        for tokens in range((request.num_tokens - 1) // self.grain * self.grain, 0, -self.grain):
            rows = [self._row(request, at, tokens) for at in range(len(self.kinds))]
            if all(row is not None for row in rows):
                return tokens, [row for row in rows if row is not None]
        return 0, [[] for _ in self.kinds]

    def _row(self, request: Request, at: int, tokens: int) -> list[Block] | None:
        needed = self.kinds[at].pages(tokens)
        row = [self.pool.null] * needed.start
        for page in needed:
            name = self._name(request, at, page)
            block = self.pool.hashed.get(name)
            if block is None or name in self._this_step:
                return None
            row.append(block)
        return row

    def _begin_load(self, request: Request, rows: list[list[Block]], hit: int, external: int) -> bool:
        """Returns whether there are blocks, without hashes, for a load after the hit."""
        wanted, tokens = [], hit + external
        for kind, row in zip(self.kinds, rows, strict=True):
            needed = kind.pages(tokens)
            kept = [self.pool.null] * min(needed.start, len(row)) + row[needed.start :]
            gap = max(0, needed.start - len(kept))
            wanted.append((kept, gap, max(0, needed.stop - len(kept) - gap)))
        idle = {block.block_id for kept, *_ in wanted for block in kept if not block.is_null and not block.users}
        if sum(new for *_, new in wanted) + len(idle) > len(self.pool.free):
            return False
        shared = [[self.pool.share(block) for block in kept] for kept, *_ in wanted]
        request.rows = [
            kept + [self.pool.null] * gap + [self.pool.take() for _ in range(new)]
            for kept, (_, gap, new) in zip(shared, wanted, strict=True)
        ]
        request.state, request.num_computed_tokens = LOADING, tokens
        request.external = external
        self.half.allocated(request, request.rows, external)
        return True

    def _promote(self, request: Request) -> bool:
        if request.request_id not in self.received:
            return False
        del self.received[request.request_id]
        if request.num_computed_tokens:
            self._hash(request, request.num_computed_tokens)
        else:
            self._give_all(request)
            request.external = 0
        request.state = PREEMPTED if request.preemptions else WAITING
        return True

    def _give_all(self, request: Request) -> None:
        for row in request.rows:
            for block in reversed(row):
                self.pool.give(block)
        request.rows = [[] for _ in self.kinds]

    def _free(self, request: Request) -> None:
        self._give_all(request)
        del self.requests[request.request_id]
