"""The families of models in SGLang that are cached, and what is refused: docs/models.md has both as tables."""

from __future__ import annotations

from typing import Final

import msgspec

from sglang_model import Spec


class Family(msgspec.Struct, frozen=True):
    """Models whose state is alike.

    Attributes:
        models: Models of this family.
        state: What is cached.
        kinds: The pools of the tests, and their page size.
        draft: The drafts that are tested beside it: "packed", "side" or "".
    """

    models: str
    state: str
    kinds: tuple[tuple[str, int], ...]
    draft: str = ""

    @property
    def pages(self) -> list[str]:
        """The page sizes of the tests."""
        return [str(page) for page in dict.fromkeys(page for _, page in self.kinds)]

    @property
    def specs(self) -> list[Spec]:
        """The engines of the tests: one without drafts and one with them for each kind of pool."""
        return [Spec(kind, page, draft=draft) for kind, page in self.kinds for draft in dict.fromkeys(("", self.draft))]


FAMILIES: Final = (
    Family("DeepSeek V3.2, GLM-5", "latents, index keys (DSA); FP8 too", (("dsa", 64), ("dsa-fp8", 64)), "packed"),
    Family("DSA beside windows", "as above, and latents of the window", (("dsa-swa", 64),)),
    Family("DSA beside recurrent layers", "as above, and recurrent state", (("mamba-dsa", 64),)),
    Family("DeepSeek V4", "C4, C128, index keys; windows and C4 states", (("dsv4", 256),), "packed"),
    Family("DeepSeek V4.1", "as above, and C1 and C2 with FP4 index keys", (("dsv4.1", 256),), "packed"),
    Family("MiniMax-M3", "K and V, index keys and values", (("minimax-m3", 16),), "side"),
    Family("MiniMax-M3 in NVFP4", "values and scales of K, V and index keys", (("minimax-m3-fp4", 128),), "side"),
    Family("Qwen4 (QSA)", "K and V, compressed index keys, recurrent state", (("qsa", 16),)),
    Family("Mamba with MLA", "latents, recurrent state", (("mamba-mla", 16),)),
    Family("Mamba with windows", "K and V, window, recurrent state", (("mamba-swa", 16),)),
    Family("MHA, GQA", "K and V; also heads first (`SGLANG_USE_HND_KVCACHE`)", (("mha", 16), ("mha-hnd", 16)), "side"),
    Family("MHA, GQA in FP4", "K, V and their scales", (("mha-fp4", 16),), "side"),
    Family("MHA, GQA in MXFP8", "K, V and scales, also interleaved", (("mha-mxfp8", 16), ("mha-mxfp8", 128)), "side"),
    Family("MLA", "latents; in FP4 with their scales", (("mla", 16), ("mla-fp8", 16), ("mla-fp4", 16)), "side"),
)  # fmt: skip

SPECS: Final = [spec for family in FAMILIES for spec in family.specs]

REFUSED: Final = {
    "pool": "the KV pool UnknownPool is not known",
    "pipeline": "pipeline parallelism: a linker's stages cannot agree on a load; use HiCache, or no --pp-size",
    "decode": "state other than latents (MLA) of decode context parallelism: leave --dcp-size out",
    "draft": "the recurrent state of a draft model is not cached: leave --speculative-algorithm out",
    "layout": "the KV layout vectorized_5d is not known: unset SGLANG_AITER_KV_CACHE_LAYOUT",
    "scales": "K and V with scales of the attention backend: choose another --kv-cache-dtype",
    "checkpoints": "recurrent layers have checkpoints in int8 or side states, which are not cached",
}
"""What makes an engine one that is served without a cache, and the line in its log."""

_DRAFTS: Final = {"packed": "packed MTP layers", "side": "a draft model's K and V", "": "-"}


def table() -> str:
    """Returns the table of what is cached, in Markdown."""
    rows = [f"| {one.models} | {one.state} | {', '.join(one.pages)} | {_DRAFTS[one.draft]} |" for one in FAMILIES]
    return "\n".join(["| models | state in a page | tested page sizes | tested with |", "| -- | -- | -- | -- |", *rows])


def refused() -> str:
    """Returns the list of what is refused, in Markdown."""
    return "\n".join(f"- `{line}`" for line in REFUSED.values())
