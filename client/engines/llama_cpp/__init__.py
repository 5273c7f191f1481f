"""Caches the state of prompts for llama.cpp, through its public C API.

    cache = PromptCache(context, library=libllama, model_files=["model.gguf"])
    for tokens in cache.prefill(prompt):     # loads what is cached; what is left comes in batches
        ...                                  # decode tokens.start to tokens.stop; prefill() stores them afterwards

PromptCache is the place to start; enable() does the same for a Llama of llama-cpp-python.
"""

from pagetier.client.engines.llama_cpp.llama_cpp_python import enable
from pagetier.client.engines.llama_cpp.prompt_cache import PromptCache

__all__ = ["PromptCache", "enable"]
