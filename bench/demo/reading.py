"""What the engines of the demo read: one long text, and a question of each engine's own behind it."""

from __future__ import annotations

from pydoc_data.topics import topics

PAGE_TOKENS = 256
TEXT_BYTES = 4200  # texts end somewhere in a page
SHARED_TOKENS = TEXT_BYTES // PAGE_TOKENS * PAGE_TOKENS  # in the full pages that all prompts begin with
QUESTIONS = (
    "When does Python call __new__, and when __init__?",
    "Which method lets an object be called like a function?",
    "What has to be true of the hashes of two objects that compare equal?",
    "Which methods does the with statement call, and in which order?",
)


def prompt_of(engine: int) -> bytes:
    """For engine 1 to 4: the beginning of "Special method names" in Python's own reference. A byte is a token."""
    text = topics["specialnames"].encode()[:TEXT_BYTES]
    return text + f"\n\nQuestion: {QUESTIONS[engine - 1]}\nAnswer:".encode()
