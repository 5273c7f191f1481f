"""One engine prefills and another decodes: pages are shared as soon as they are complete."""

from __future__ import annotations

import pytest

from eventually import eventually
from one_host import Scene, ask, distance, hybrid, prompt, scene_of, texts

PROMPTS = [prompt(40 + at, 1100) for at in range(3)]
ANSWER = 300
ROUNDING = 0.05


@pytest.mark.parametrize("name", hybrid())
def test_a_second_engine_hits_pages_of_requests_in_progress(name: str) -> None:
    with scene_of(name) as scene:
        prefilling, decoding = scene.engine(), scene.engine()
        with prefilling, decoding:
            ask(decoding, prompt(39, 1100))  # warms the engine up and shows the number of pages of a prompt
            scene.settle()
            of_one = scene.daemon.header().pages
            prefilling.begin("generate", prompts=PROMPTS, tokens=ANSWER)
            assert eventually(lambda: has(scene, 4 * of_one), 100), scene.daemon.header()
            with prefilling.paused():
                assert not prefilling.answered
                result = ask(decoding, *PROMPTS)
            assert result["external"] == sum(answer["cached"] for answer in result["answers"]) == 3 * scene.hit(1100)
            first = prefilling.end()
            for answer in first["answers"]:
                assert len(answer["tokens"]) == ANSWER
                del answer["tokens"][8:], answer["logprobs"][8:]
            assert texts(result) == texts(first)
            assert distance(result, first) < ROUNDING


def has(scene: Scene, pages: int) -> bool:
    """Returns whether `pages` pages are stored and none is pending. settle() would wait for those of answers, too."""
    header = scene.daemon.header()
    return header.pages >= pages and not header.open_entries
