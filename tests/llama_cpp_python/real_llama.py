"""A Llama of llama-cpp-python over a small random model with a tokenizer, in this process or in one of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any, Final

import llama_cpp
import msgspec
import numpy as np
from gguf import GGUFReader, GGUFWriter, TokenType

from pagetier.client import Client
from pagetier.client.engines.llama_cpp import enable
from random_gguf import VOCABULARY, write_gemma3, write_jamba, write_lfm2, write_llama, write_mamba

PAGE: Final = 64
NEW: Final = 12
"""The tokens that a test generates after a prompt."""

WRITERS: Final[dict[str, Callable[[Path], Path]]] = {
    "llama": write_llama,
    "gemma3": write_gemma3,
    "lfm2": write_lfm2,
    "jamba": write_jamba,
    "mamba": write_mamba,
}
"""What writes a model of each kind of memory."""

_HARNESS: Final = f"{Path(__file__).parents[1] / 'harness'}"
_SPECIAL: Final = ("<unk>", "<s>", "</s>")
_BYTES: Final = 256


class RealLlama(llama_cpp.Llama):  # type: ignore[misc]
    """A Llama with one thread and pages of PAGE tokens.

    Args:
        model: The model.
        **params: Other arguments of a Llama.

    Attributes:
        computed: The number of tokens that were evaluated.
    """

    def __init__(self, model: Path, **params: Any) -> None:
        sizes = {"n_ctx": 1024, "n_batch": 4 * PAGE, "n_ubatch": PAGE, "n_threads": 1, "n_threads_batch": 1}
        super().__init__(str(model), **sizes, swa_full=True, verbose=False, **params)
        self.computed = 0

    def eval(self, tokens: Any) -> None:
        """Counts what is evaluated."""
        self.computed += len(tokens)
        super().eval(tokens)

    def complete(self, prompt: list[int], tokens: int = NEW) -> list[int]:
        """Returns the tokens that follow a prompt at temperature 0."""
        return list(islice(self.generate(prompt, temp=0.0), tokens))

    def digest(self) -> str:
        """Returns a digest of the last logits, equal only if all bits are."""
        logits = llama_cpp.llama_get_logits_ith(self.ctx, -1)
        return sha256(np.ctypeslib.as_array(logits, (VOCABULARY,)).tobytes()).hexdigest()


class Answer(msgspec.Struct, frozen=True):
    """What a Llama made of a prompt."""

    tokens: list[int]
    digest: str
    computed: int


def write_worded(kind: str, folder: Path) -> Path:
    """Writes a random model whose tokenizer has a token for each byte, and returns its path."""
    bare, path = WRITERS[kind](folder / f"{kind}-bare.gguf"), folder / f"{kind}.gguf"
    reader, writer = GGUFReader(bare), GGUFWriter(str(path), kind)
    for name, field in reader.fields.items():
        if not name.startswith(("GGUF.", "general.architecture", "tokenizer.")):
            element = field.types[-1] if len(field.types) > 1 else None
            writer.add_key_value(name, field.contents(), field.types[0], element)
    _add_words(writer)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_words(writer: Any) -> None:
    words = [f"\u2581w{number}" for number in range(VOCABULARY - len(_SPECIAL) - _BYTES)]
    writer.add_tokenizer_model("llama")
    writer.add_token_list([*_SPECIAL, *(f"<0x{byte:02X}>" for byte in range(_BYTES)), *words])
    writer.add_token_scores([0.0] * VOCABULARY)
    kinds = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL, *[TokenType.BYTE] * _BYTES]
    writer.add_token_types([*kinds, *[TokenType.NORMAL] * len(words)])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)


def answer_in_process(model: Path, socket: Path, prompt: list[int]) -> Answer:
    """Completes a prompt in a process of its own, which has ended when this returns."""
    command = [sys.executable, __file__, str(model), str(socket)]
    environ = os.environ | {"PYTHONPATH": _HARNESS}
    done = subprocess.run(command, input=json.dumps(prompt), stdout=subprocess.PIPE, text=True, env=environ, check=True)
    return msgspec.json.decode(done.stdout, type=Answer)


def _answer(model: Path, socket: Path) -> Answer:
    with Client(socket) as client:
        assert client.wait_attached(20)
        llama = RealLlama(model)
        with enable(llama, client=client):
            tokens = llama.complete(json.load(sys.stdin))
            return Answer(tokens, llama.digest(), llama.computed)


if __name__ == "__main__":
    sys.stdout.write(msgspec.json.encode(_answer(Path(sys.argv[1]), Path(sys.argv[2]))).decode())
