"""The prompts of the demo's engines: one long program, and the first line of a function for each engine to complete."""

from __future__ import annotations

import bisect
import inspect

PAGE_TOKENS = 64
NEW_TOKENS = 40
FUNCTIONS = (
    "def fibonacci(n):",
    "def is_palindrome(text):",
    "def factorial(n):",
    "def count_words(text):",
)


def program() -> str:
    """Returns the source of Python's own module bisect, as this Python has it."""
    return inspect.getsource(bisect)


def prompt_of(engine: int) -> str:
    """Returns the prompt of engine 1 to 4."""
    return f"{program()}\n\n{FUNCTIONS[engine - 1]}\n    "
