"""What SGLang's cache is asked for: the key of a prompt, and a request."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from sglang.srt.managers.schedule_batch import ReqKvInfo
from sglang.srt.mem_cache.radix_cache import RadixKey

from sglang_model import AnyPrompt, prompt, salted


def key_of(number: AnyPrompt, tokens: int) -> Any:
    """Returns SGLang's key of a prompt."""
    own = salted(number)
    return RadixKey(prompt(own.number, tokens), extra_key=own.extra_key, cache_salt=own.cache_salt)


def request_of(rid: str, number: AnyPrompt) -> Any:
    """Returns what SGLang's cache uses of a request."""
    return SimpleNamespace(
        rid=rid,
        extra_key=salted(number).extra_key,
        cache_salt=salted(number).cache_salt,
        swa_host_hit_length=0,
        mamba_host_hit_length=0,
        kv=ReqKvInfo(),
        swa_branching_seqlen=None,
        mamba_branching_seqlen=None,
        session=None,
        number=number,
    )
