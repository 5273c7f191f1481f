"""One engine prefills, another decodes: the pages are shared as soon as they are whole."""

from __future__ import annotations

import pytest

from one_host import Scene, ask, distance, hybrid, prompt, scene_of, texts
from running_daemon import eventually

PROMPTS = [prompt(40 + at, 1100) for at in range(3)]
ANSWER = 500  # of 300 a fast machine had the last before the second engine had asked
ROUNDING = 0.05


@pytest.mark.parametrize("name", hybrid())
def test_the_second_hits_what_the_first_still_works_on(name: str) -> None:
    with scene_of(name) as scene:
        prefilling, decoding = scene.engine(), scene.engine()
        with prefilling, decoding:
            ask(decoding, prompt(39, 1100))  # so that it is warm, and known how many pages a prompt has
            scene.settle()
            of_one = scene.daemon.header()["pages"]
            prefilling.begin("generate", prompts=PROMPTS, tokens=ANSWER)
            assert eventually(lambda: has(scene, 4 * of_one), 100), scene.daemon.header()
            told = ask(decoding, *PROMPTS)
            assert not prefilling.answered
            assert told["external"] == sum(answer["cached"] for answer in told["answers"]) == 3 * scene.hit(1100)
            first = prefilling.end()
            for answer in first["answers"]:
                assert len(answer["tokens"]) == ANSWER
                del answer["tokens"][8:], answer["logprobs"][8:]
            assert texts(told) == texts(first)
            assert distance(told, first) < ROUNDING


def has(scene: Scene, pages: int) -> bool:
    """Whether so many are stored, and none is on its way: settle() would wait for those of the answers, too."""
    header = scene.daemon.header()
    return header["pages"] >= pages and not header["open_entries"]
