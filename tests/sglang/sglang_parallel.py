"""How the ranks of SGLang divide a model, and what of it is cached: docs/models.md has it as a table."""

from __future__ import annotations

from typing import Final

import msgspec

from sglang_model import Spec

_NAMES: Final = {"mha": "MHA", "mla": "MLA", "swa": "windows", "mamba": "recurrent state", "dsa": "DSA"} | {
    "dsv4": "DeepSeek V4",
    "minimax-m3": "MiniMax-M3",
    "mla-fp8": "MLA",
    "dsa-fp8": "DSA",
    "dsa-split": "DSA",
}


class Division(msgspec.Struct, frozen=True):
    """One way in which ranks divide a model.

    Attributes:
        flag: SGLang's flag.
        state: What a rank has.
        shared: The engines that share pages.
        linker: The engines with the linker that are tested.
        hicache: The engines with HiCache that are tested.
        missing: What the table says for a door without tested engines.
    """

    flag: str
    state: str
    shared: str
    linker: tuple[Spec, ...] = ()
    hicache: tuple[Spec, ...] = ()
    missing: str = "refused"

    @property
    def row(self) -> str:
        """The row of the table."""
        doors = [_named(self.linker) or self.missing, _named(self.hicache) or self.missing]
        return " | ".join(["", f"`{self.flag}`", self.state, self.shared, *doors, ""]).strip()


PIPELINES: Final = Division(
    "--pp-size",
    "its layers",
    "with as many stages, of the same layers",
    hicache=(
        *(Spec("mha", 16, ranks=2, stages=2, layout=layout) for layout in ("page_first", "layer_first", "page_head")),
        *(Spec(kind, 16, ranks=2, stages=2, layout="page_first") for kind in ("mla", "swa", "mamba")),
        Spec("mha", 64, ranks=1, stages=3, layout="page_first"),
        Spec("mla", 16, ranks=1, stages=2, layout="page_first", layers=(3, 4)),
        Spec("dsa", 64, ranks=2, stages=2, layout="page_first"),
        Spec("dsa-fp8", 64, ranks=2, stages=2, layout="layer_first"),
        Spec("dsv4", 256, ranks=2, stages=2, layout="page_first"),
    ),
)

DRAFTS: Final = tuple(
    Spec(kind, page, ranks=ranks, stages=2, layout="page_first", draft="packed")
    for kind, page, ranks in (("mha", 16, 1), ("mla", 16, 1), ("dsa", 64, 2), ("dsa-fp8", 64, 2), ("dsv4", 256, 2))
)
"""Pipelines with a draft, of which the last stage has all layers."""

REPLICAS: Final = Division(
    "--attn-cp-size",
    "all tokens; the first rank stores",
    "with any number",
    linker=(
        *(Spec(kind, 16, ranks=2, contexts=2) for kind in ("mha", "mla", "swa")),
        Spec("dsa", 64, ranks=2, contexts=2),
        Spec("dsv4", 256, ranks=1, contexts=2),
        Spec("minimax-m3", 16, ranks=1, contexts=4),
    ),
    hicache=tuple(Spec(kind, 16, ranks=2, contexts=2, layout="page_first") for kind in ("mha", "mla", "swa")),
)

TOKENS: Final = Division(
    "--dcp-size",
    "every so manieth token of a page",
    "with the same number",
    linker=(Spec("mla-fp8", 32, ranks=2, splits=2), Spec("mla-fp8", 64, ranks=4, splits=2)),
    missing="refused by SGLang",
)

LAYERS: Final = Division(
    "--enable-dsa-cache-layer-split",
    "a part of the layers",
    "with as many ranks",
    linker=(Spec("dsa-split", 64, contexts=3), Spec("dsa-split", 64, ranks=2, contexts=2)),
)

NOT_IN_PIPELINES: Final = {
    "DeepSeek V4.1": "DeepSeek-V4.1 does not support pipeline parallelism yet",
    "MiniMax-M3": "MiniMax-M3 sparse HiCache does not support pipeline parallelism",
    "DeepSeek V4, if a stage has windows alone": (
        "a pipeline stage has no compressed layers: set SGLANG_PP_LAYER_PARTITION so that each stage has some"
    ),
    "drafts other than EAGLE with MTP layers": (
        "drafts other than EAGLE with MTP layers beside pipeline parallelism: leave --speculative-algorithm out"
    ),
}
"""What is not cached in a pipeline, and the line of pagetier or the exception of SGLang that says so."""

DIVISIONS: Final = (PIPELINES, REPLICAS, TOKENS, LAYERS)


def table() -> str:
    """Returns the table of what is cached, in Markdown."""
    head = [
        "| ranks divided by | state of a rank | engines that share pages | linker, tested with | HiCache, tested with |"
    ]
    return "\n".join([*head, "| -- | -- | -- | -- | -- |", *(division.row for division in DIVISIONS)])


def not_in_pipelines() -> str:
    """Returns the table of what is not cached in a pipeline, in Markdown."""
    rows = [f"| {models} | `{line}` |" for models, line in NOT_IN_PIPELINES.items()]
    return "\n".join(["| in a pipeline with HiCache | in SGLang's log |", "| -- | -- |", *rows])


def _named(specs: tuple[Spec, ...]) -> str:
    return ", ".join(dict.fromkeys(_NAMES[spec.kind] for spec in specs))
