"""Tests `"store": "on_eviction"` in a real engine: it finds the pages that fell out of its cache."""

from __future__ import annotations

from one_host import ask, exact, prompt, scene_of


def test_a_real_engine_finds_the_pages_that_fell_out_of_its_cache() -> None:
    with scene_of("llama") as scene:
        small = {"num_gpu_blocks_override": 40, "max_num_batched_tokens": 512, "max_model_len": 1400}
        stored: dict[str, int] = {}
        for store in ("eager", "on_eviction"):
            with scene.engine(engine=small, extra={"store": store, "salt": store}) as engine:
                first = [ask(engine, prompt(number)) for number in range(8)]
                scene.settle()
                stored[store] = scene.daemon.header().pages - sum(stored.values())
                if store == "eager":
                    continue
                again = ask(engine, prompt(7))
                assert again["external"] == 0 and again["answers"][0]["cached"] == scene.hit(), "still on the GPU"
                for number in (0, 1):
                    again = ask(engine, prompt(number))
                    assert again["external"] == scene.hit()
                    assert [one[0] for one in exact(again)] == [one[0] for one in exact(first[number])]
                    scene.settle()
                    assert exact(ask(engine, prompt(number))) == exact(again), "as from vLLM's own cache"
        assert stored["eager"] == 8 * (scene.hit() // 128)
        assert 0 < stored["on_eviction"] <= stored["eager"] - 8, stored
