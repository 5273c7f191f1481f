"""Why pagetier is behind where it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from race.contestants.registry import FILES, NATIVE
from race.report.ratios import Comparison
from race.report.systems import VLLM


class Reason(msgspec.Struct, frozen=True):
    """Why a rival is better in all cases whose names have one of these words.

    Attributes:
        contest: The contest of the cases.
        words: Words of which the name of a case has one.
        rivals: The rivals.
        title: What the report calls these cases.
        sentences: The reason.
    """

    contest: str
    words: tuple[str, ...]
    rivals: tuple[str, ...]
    title: str
    sentences: str

    def explains(self, one: Comparison) -> bool:
        """Returns whether a comparison belongs to these cases."""
        figures = one.figures
        return (
            figures.contest == self.contest
            and one.rival in self.rivals
            and any(word in figures.case for word in self.words)
        )


_COMPUTED = (
    "pagetier prepares the store of what a request has computed when the model has run, before the first token is"
    " chosen: about 0.3 ms of the engine's thread. The copy begins 3 ms later."
)
REASONS = (
    Reason(
        "serving",
        ("8190 tokens, computed",),
        (NATIVE, VLLM),
        "first token of 8,190 tokens, computed",
        "probably page faults. The allocator returns to the kernel what a step has freed, by chance more in one engine"
        " than in another, and the next step faults it in again. Later, engines of vLLM alone took 2,274 to 2,367 ms of"
        " CPU time for such a prompt with 40,000 to 64,000 faults, and 2,188 to 2,225 ms with none, when their"
        " allocator kept its memory. In turns with them, pagetier's took 1.00 x the CPU time of vLLM's, 4 ms of it in"
        " threads of its own. The engines of further races keep their memory.",
    ),
    Reason(
        "serving",
        ("nothing cached",),
        (VLLM,),
        "tokens with nothing cached",
        "vLLM calls a connector in each step, also if nothing is to be stored or loaded. Native takes as long. Since"
        " then such a step executes a third of the instructions in pagetier's worker, fewer than in native's.",
    ),
    Reason(
        "serving",
        ("computed",),
        (NATIVE,),
        "first tokens, computed",
        f"{_COMPUTED} Native prepares its store before the model runs, and copies in the next step, which has no part"
        " in these times.",
    ),
    Reason("serving", ("computed",), (VLLM,), "first tokens, computed", f"{_COMPUTED} vLLM alone keeps nothing."),
    Reason("router", ("first turns",), (NATIVE, VLLM), "first turns of chats", f"these are computed. {_COMPUTED}"),
    Reason(
        "router",
        ("memory",),
        (VLLM,),
        "memory of four engines",
        "vLLM alone has no memory beside that of its engines.",
    ),
    Reason(
        "disk",
        ("warm read",),
        (FILES,),
        "warm reads",
        "the kernel's page cache has what was just written, and files read that. pagetier writes and reads past the"
        " page cache, because its own memory is the cache, and this contest empties it.",
    ),
    Reason(
        "disk",
        ("read", "mixed"),
        (NATIVE, FILES),
        "disk",
        "pagetier reads a page into shared memory, checks every byte, and then copies it to the engine. These two"
        " check nothing, and native's functions read straight into the engine's memory.",
    ),
)


def reasons_for(behind: Sequence[Comparison]) -> Iterator[str]:
    """Yields the reasons of these comparisons, and the cases that have none."""
    given = dict[Reason, dict[str, None]]()
    for one in behind:
        reason = next((each for each in REASONS if each.explains(one)), None)
        if reason:
            given.setdefault(reason, {})[one.rival] = None
        else:
            yield f"- {one.figures.case} ({one.rival}): the reason is not known."
    for reason, rivals in given.items():
        yield f"- {reason.title.capitalize()} ({', '.join(rivals)}): {reason.sentences}"
