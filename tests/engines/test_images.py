"""Tests prompts with images: engines share pages of the same images, and the same text with another one is no hit."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest

from one_host import PAGE_TOKENS, REPORTS_FAILURES, exact, hit_of, prompt, scene_of
from tiny_model import IMAGE, IMAGE_TOKENS
from vllm_engine import VllmEngine

pytestmark = pytest.mark.skipif(not REPORTS_FAILURES, reason="tested from 0.30 on")

READS_IMAGES: dict[str, Any] = {"skip_tokenizer_init": False, "limit_mm_per_prompt": {"image": 2}}
PAGE = PAGE_TOKENS["idefics3"]
BEFORE, AFTER = prompt(90, 20), prompt(91, 600)
ONE_IMAGE = [*BEFORE, IMAGE, *AFTER]
FIRST_PART = [*BEFORE, IMAGE, *prompt(92, 3 * PAGE - 20 - IMAGE_TOKENS)]
TWO_IMAGES = [*FIRST_PART, IMAGE, *prompt(93, 200)]


def ask(engine: VllmEngine, question: list[int], *images: int) -> dict[str, Any]:
    """Generates an answer to a question with the images of these seeds."""
    return engine.do("generate", prompts=[question], images=list(images))


def hit(question: list[int]) -> int:
    """Returns the longest possible hit."""
    return hit_of("idefics3", len(question) + question.count(IMAGE) * (IMAGE_TOKENS - 1))


def test_engines_share_pages_of_the_same_images_only() -> None:
    with ExitStack() as running:
        scene = running.enter_context(scene_of("idefics3"))
        one, two = (running.enter_context(scene.engine(engine=READS_IMAGES)) for _ in range(2))
        computed = [ask(one, ONE_IMAGE, image) for image in (1, 2)]
        assert [answer["external"] for answer in computed] == [0, 0], "another image finds the pages of the first"
        assert exact(computed[0]) != exact(computed[1]), "the image changes nothing"
        own = [ask(one, ONE_IMAGE, image) for image in (1, 2)]
        both = ask(one, TWO_IMAGES, 1, 2)
        scene.settle()
        for image, expected in zip((1, 2), own, strict=True):
            loaded = ask(two, ONE_IMAGE, image)
            assert loaded["external"] == hit(ONE_IMAGE)
            assert exact(loaded) == exact(expected)
        assert ask(two, ONE_IMAGE, 3)["external"] == 0
        assert ask(two, [*BEFORE, *[IMAGE] * IMAGE_TOKENS, *AFTER])["external"] == 0, "text alone finds an image"
        assert both["external"] == 0
        assert ask(two, TWO_IMAGES, 2, 1)["external"] == 0
        assert ask(two, TWO_IMAGES, 1, 3)["external"] == 3 * PAGE, "the pages before the second image are the same"
        assert ask(two, TWO_IMAGES, 1, 2)["external"] == hit(TWO_IMAGES) - 3 * PAGE, "the others are loaded"
