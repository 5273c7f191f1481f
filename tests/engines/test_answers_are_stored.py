"""The tokens of an answer are the head of the next prompt: they are stored, too."""

from __future__ import annotations

import pytest

from one_host import ask, ask_anew, chosen, distance, exact, prompt, scene_of, texts

ANSWER = 281  # the last of its tokens that is computed fills a page
ROUNDING = 0.05


@pytest.mark.parametrize("name", chosen())
def test_a_prompt_that_goes_on_after_an_answer(name: str) -> None:
    question = prompt(60)
    with scene_of(name) as scene, scene.engine() as engine:
        answer = texts(ask(engine, question, tokens=ANSWER))[0]
        further = [*question, *answer, *prompt(61, 20)]
        own = ask(engine, further)
        scene.settle()
        told = ask_anew(engine, further)
        assert told["external"] == told["answers"][0]["cached"] > len(question)
        assert told["external"] == scene.hit(len(question) + ANSWER)
        assert texts(told) == texts(own)
        if own["answers"][0]["cached"] == told["external"]:
            assert exact(told) == exact(own)
        assert distance(told, own) < ROUNDING
        assert exact(ask(engine, further)) == exact(told)
        assert exact(ask_anew(engine, further)) == exact(told)
