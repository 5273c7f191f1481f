"""The prompts of the demo's engines: one long text, followed by a different question for each engine."""

from __future__ import annotations

from pydoc_data.topics import topics

PAGE_TOKENS = 256
TEXT_BYTES = 4200  # a text does not end at a page's border
SHARED_TOKENS = TEXT_BYTES // PAGE_TOKENS * PAGE_TOKENS  # in the full pages that all prompts share
QUESTIONS = (
    "When does Python call __new__, and when __init__?",
    "Which method lets an object be called like a function?",
    "What must be true of the hashes of two objects that compare equal?",
    "Which methods does the with statement call, and in which order?",
)


def prompt_of(engine: int) -> bytes:
    """Returns the prompt of engine 1 to 4, the start of "Special method names" in Python's reference as bytes."""
    text = topics["specialnames"].encode()[:TEXT_BYTES]
    return text + f"\n\nQuestion: {QUESTIONS[engine - 1]}\nAnswer:".encode()
