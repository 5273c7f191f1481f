"""Models whose pages have several physical buffers: stored, loaded into other slots, and every byte compared."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

import sglang_families
from disk_daemon import DiskDaemon
from eventually import eventually
from sglang_engine import SglangEngine
from sglang_families import SPECS
from sglang_model import Restored, Spec, computed, whole, write_config

pytest_plugins = ("sglang_daemon",)
PAGES = 4
_DOCUMENT = Path(__file__).parents[2] / "docs" / "models.md"


def on(ranks: int, spec: Spec) -> Spec:
    """Returns the same model on another number of ranks."""
    return msgspec.structs.replace(spec, ranks=ranks)


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_the_rows_of_a_prompt_are_loaded_and_nothing_else_changes(daemon: DiskDaemon, spec: Spec, ranks: int) -> None:
    """All bytes of all buffers of all ranks are compared, in this engine and in a new process, and from disk."""
    spec = on(ranks, spec)
    with SglangEngine(spec, daemon.socket) as engine:
        for number in (1, 2):
            assert min(engine.insert(number, PAGES)) >= 1, "no node was stored"
        engine.reset()
        assert engine.restore(1, PAGES) == whole(spec, PAGES)
        assert engine.restore(3, PAGES) == computed(spec)
    with SglangEngine(spec, daemon.socket) as other:
        assert other.restore(2, PAGES) == whole(spec, PAGES)
        daemon.save()
        daemon.flush("memory")
        other.reset()
        assert other.restore(1, PAGES) == computed(spec), "it is read for the next lookup"
        assert eventually(lambda: other.restore(1, PAGES) == whole(spec, PAGES))
        assert "Traceback" not in other.log


@pytest.mark.parametrize(
    "spec",
    [
        Spec("dsa", 64),
        Spec("dsv4", 256),
        Spec("minimax-m3", 16),
        Spec("mha-fp4", 16),
        Spec("mha-mxfp8", 128),
        Spec("mla-fp4", 16),
    ],
    ids=lambda spec: spec.name,
)
@pytest.mark.parametrize("ranks", [(1, 2), (4, 1), (2, 4)], ids=lambda ranks: "to".join(map(str, ranks)))
def test_every_number_of_ranks_reads_the_pages_of_every_other(
    daemon: DiskDaemon, spec: Spec, ranks: tuple[int, int]
) -> None:
    stores, loads = (on(count, spec) for count in ranks)
    with SglangEngine(stores, daemon.socket) as engine:
        assert min(engine.insert(1, PAGES)) >= 1
    with SglangEngine(loads, daemon.socket) as engine:
        assert engine.restore(1, PAGES) == whole(loads, PAGES)


@pytest.mark.parametrize(
    ("spec", "forgotten"),
    [
        (Spec("dsa", 64), "indexer"),
        (Spec("dsa", 64), "kv"),
        (Spec("dsa", 64, draft="packed"), "draft"),
        (Spec("dsa-fp8", 64), "indexer"),
        (Spec("dsa-swa", 64), "index"),
        (Spec("mamba-dsa", 64), "index"),
        (Spec("dsv4", 256), "swa"),
        (Spec("dsv4", 256), "deepseek_v4_c4"),
        (Spec("dsv4", 256), "deepseek_v4_c4_indexer"),
        (Spec("dsv4", 256), "deepseek_v4_c4_state"),
        (Spec("dsv4", 256), "deepseek_v4_c4_indexer_state"),
        (Spec("dsv4", 256), "deepseek_v4_c128"),
        (Spec("dsv4", 256, draft="packed"), "draft"),
        (Spec("dsv4.1", 256), "deepseek_v4_c1"),
        (Spec("dsv4.1", 256), "deepseek_v4_c1_indexer"),
        (Spec("dsv4.1", 256), "deepseek_v4_c2"),
        (Spec("dsv4.1", 256), "deepseek_v4_c2_indexer"),
        (Spec("dsv4.1", 256, draft="packed"), "draft"),
        (Spec("minimax-m3", 16), "index v"),
        (Spec("minimax-m3-fp4", 128), "index scale"),
        (Spec("minimax-m3-fp4", 128), "v scale"),
        (Spec("mha-fp4", 16), "v scale"),
        (Spec("mha-mxfp8", 128), "k scale"),
        (Spec("mla-fp4", 16), "scale"),
        (Spec("qsa", 16), "index k"),
        (Spec("qsa", 16), "state"),
        (Spec("mamba-mla", 16), "state"),
        (Spec("mha", 16, draft="side"), "draft 0 v"),
        (Spec("minimax-m3", 16, draft="side"), "draft 0 k"),
    ],
    ids=lambda one: one.replace(" ", "-") if isinstance(one, str) else one.name,
)
def test_a_forgotten_buffer_is_noticed(daemon: DiskDaemon, spec: Spec, forgotten: str) -> None:
    """Pages without one of the buffers are loaded as if they were whole, and the comparison sees it."""
    tokens = PAGES * spec.page
    with SglangEngine(spec, daemon.socket, forget=forgotten) as engine:
        engine.insert(1, PAGES)
        engine.reset()
        assert engine.restore(1, PAGES) == [Restored(tokens, tokens, equal=False, failed=False)]


@pytest.mark.parametrize("kind", ["mha", "dsa"])
def test_pairs_of_tokens_and_tokens_have_other_pages(daemon: DiskDaemon, kind: str) -> None:
    """An engine with a draft model and one without it share nothing, whichever stored first."""
    plain, drafting = Spec(kind, 64), Spec(kind, 64, draft="packed")
    for first, second in ((plain, drafting), (drafting, plain)):
        with SglangEngine(first, daemon.socket) as engine:
            engine.insert(1, PAGES)
        with SglangEngine(second, daemon.socket) as engine:
            assert engine.restore(1, PAGES) == computed(second)
        daemon.drop_all_pages()


@pytest.mark.parametrize(
    "setting", ["index_k_page8", "index_k_rne", "use_fp4_indexer", "kv_layout", "kv_layout of windows"]
)
def test_formats_of_one_size_have_other_pages(daemon: DiskDaemon, setting: str) -> None:
    """The bytes of a pool have another meaning with another setting of the pool, which has the same sizes."""
    spec = Spec("dsv4", 256)
    with SglangEngine(spec, daemon.socket) as engine:
        engine.insert(1, PAGES)
    with SglangEngine(spec, daemon.socket, change=setting) as engine:
        assert eventually(lambda: "pagetier attached to" in engine.log), engine.log
        assert engine.restore(1, PAGES) == computed(spec)


@pytest.mark.parametrize("layout", ["", "page_first"])
@pytest.mark.parametrize("setting", ["rings of states", "type of states"])
def test_states_of_one_size_and_another_form_are_other_pages(daemon: DiskDaemon, setting: str, layout: str) -> None:
    """In both doors. The states of DeepSeek V4 have as many bytes as before."""
    spec = Spec("dsv4", 256, layout=layout)
    with SglangEngine(spec, daemon.socket) as engine:
        engine.insert(1, PAGES)
    with SglangEngine(spec, daemon.socket, change=setting) as engine:
        assert eventually(lambda: "pagetier attached to" in engine.log), engine.log
        assert engine.restore(1, PAGES) == computed(spec)


@pytest.mark.parametrize("layout", ["", "page_first"])
def test_index_keys_in_fp4_and_fp8_are_other_pages(daemon: DiskDaemon, layout: str) -> None:
    spec = Spec("dsv4", 256, layout=layout)
    with SglangEngine(spec, daemon.socket) as engine:
        engine.insert(1, PAGES)
    with SglangEngine(spec, daemon.socket, flags={"enable_deepseek_v4_fp4_indexer": True}) as engine:
        assert eventually(lambda: "pagetier attached to" in engine.log), engine.log
        assert engine.restore(1, PAGES) == computed(spec)
        engine.insert(2, PAGES)
        engine.reset()
        assert engine.restore(2, PAGES) == whole(spec, PAGES)


@pytest.mark.parametrize("layout", ["", "page_first"])
def test_engines_with_other_draft_models_have_other_pages(daemon: DiskDaemon, tmp_path: Path, layout: str) -> None:
    """The weights of a draft model determine its layers in the pages. The doors have the same name for them."""
    spec = Spec("mha", 16, layout=layout, draft="" if layout else "side")
    drafts = [write_config(tmp_path / name, spec) for name in ("one", "other")]
    for folder in drafts:
        (folder / "model.safetensors").write_bytes(folder.name.encode())
    target = write_config(tmp_path / "target", spec)
    (target / "model.safetensors").write_bytes(b"target")
    engines = [
        {"weights": "", "flags": {"model_path": str(target), "speculative_draft_model_path": str(draft)}}
        for draft in drafts
    ]
    with SglangEngine(spec, daemon.socket, **engines[0]) as engine:
        engine.insert(1, PAGES)
    for extra, wanted in ((engines[1], computed(spec)), (engines[0], whole(spec, PAGES))):
        with SglangEngine(spec, daemon.socket, **extra) as engine:
            assert engine.restore(1, PAGES) == wanted


@pytest.mark.parametrize("mode", ["prefill", "decode"])
@pytest.mark.parametrize("spec", [Spec("dsa", 64), Spec("mha", 16)], ids=lambda spec: spec.name)
def test_engines_that_share_the_work_of_a_request_share_its_pages(daemon: DiskDaemon, spec: Spec, mode: str) -> None:
    """An engine for prefill stores and loads. One for decoding stores what others load: SGLang lets it load nothing."""
    flags = {"disaggregation_mode": mode, "disaggregation_decode_enable_radix_cache": mode == "decode"}
    with SglangEngine(spec, daemon.socket, flags=flags) as engine:
        engine.insert(1, PAGES)
        engine.reset()
        assert engine.restore(1, PAGES) == (whole(spec, PAGES) if mode == "prefill" else computed(spec))
    with SglangEngine(spec, daemon.socket) as engine:
        assert engine.restore(1, PAGES) == whole(spec, PAGES)


def test_the_document_has_the_tables() -> None:
    text = _DOCUMENT.read_text()
    assert sglang_families.table() in text
    assert sglang_families.refused() in text
