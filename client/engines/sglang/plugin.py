"""SGLang's door to pagetier: it calls register() in each process, through the entry point `sglang.srt.plugins`.

In the processes of schedulers, register() hooks SGLang's radix cache (linker/cache_hooks.py), before SGLang applies the
hooks of all plugins. It also hooks ServerArgs.resolve_once(), which every launcher calls once, to select the external
linker if the variable PAGETIER means on, and the step before SGLang chooses a page size, for engines that use pagetier
by the variable or by flags. Settings that SGLang rejects are resolved again, first with SGLang's own page size and then
without the linker that the variable selected.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from pagetier.client.engines.sglang.engine.page_size import chosen_page_tokens
from pagetier.client.engines.sglang.engine.settings import LinkerSettings, read_settings
from pagetier.client.engines.sglang.engine.version import KNOWN_VERSIONS, VERSION, require_known_version
from pagetier.client.engines.switch import log_no_effect, settings_of, switched_on
from pagetier.client.engines.unsupported import UnsupportedError, reported_as_unsupported

log = logging.getLogger("pagetier.sglang")

_RESOLVE_ONCE: Final = "sglang.srt.server_args.ServerArgs.resolve_once"
_SCHEDULER: Final = "sglang.srt.managers.scheduler"
_BEFORE_PAGE_SIZE: Final = "handle_mxfp8_kv_cache_compatibility"
"""The step of SGLang's resolution that comes before its default of one token a page."""
_CHOSEN_BY: Final = "pagetier"
_LINKER: Final = "PagetierLinker"
_STORAGE: Final = "PagetierStorage"
_MODULE: Final = "pagetier.client.engines.sglang"

_OTHER_CACHES: Final = {
    "enable_lmcache": "--enable-lmcache",
    "enable_flexkv": "--enable-flexkv",
    "disable_radix_cache": "--disable-radix-cache",
    "radix_cache_backend": "--radix-cache-backend",
    "enable_unified_memory": "--enable-unified-memory",
    "enable_hisparse": "--enable-hisparse",
    "enable_kv_cache_sharding": "--enable-kv-cache-sharding",
    "encoder_only": "--encoder-only",
}
"""The settings of other caches, with which SGLang has no linker, and their flags."""
_EXCLUDING: Final = {
    "enable_hierarchical_cache": "--enable-hierarchical-cache",
    "hicache_storage_backend": "--hicache-storage-backend",
    **_OTHER_CACHES,
    "enable_unified_cache_external_linker": "--enable-unified-cache-external-linker",
    "unified_cache_external_linker_config": "--unified-cache-external-linker-config",
}
"""The settings with which SGLang has no linker, or one that a user selected, and their flags."""


def register() -> None:
    """Registers pagetier's hooks. SGLang applies them when all plugins are loaded."""
    with reported_as_unsupported(log):
        if _is_known() and _SCHEDULER in sys.modules:
            from pagetier.client.engines.sglang.linker.cache_hooks import register_hooks

            register_hooks()
        if _is_known() or switched_on():
            HookRegistry.register(_RESOLVE_ONCE, resolve_settings, HookType.AROUND)
        if _is_known():
            from sglang.srt.arg_groups.resolution_hooks import register_resolution_hook

            register_resolution_hook(_BEFORE_PAGE_SIZE)(choose_page_size)


def _is_known() -> bool:
    return VERSION in KNOWN_VERSIONS


def resolve_settings(resolve: Callable[[Any], None], args: Any) -> None:
    """Resolves SGLang's ServerArgs: with the linker if the variable selects it, and with pages that fill frames.

    If the linker is refused, settings are resolved as they were given, and one line in the log says why.

    Args:
        resolve: SGLang's own method.
        args: SGLang's ServerArgs. A copy in another process is resolved already.
    """
    if getattr(args, "_resolution_finished", False):
        resolve(args)
        return
    value = switched_on()
    refusal = _resolve_with_linker(resolve, args, value) if value else None
    if refusal or not value:
        _resolve_with_pages(resolve, args)  # if the linker was not the reason, this raises what SGLang says without it
    if tokens := _chosen(args):
        log.info("pagetier set --page-size %d, so that pages fill frames; --page-size 1 avoids it", tokens)
    if refusal:
        log_no_effect(log, value, refusal)


def _resolve_with_linker(resolve: Callable[[Any], None], args: Any, value: str) -> Exception | None:
    """Resolves settings with the linker. If it is refused, undoes that and returns why."""
    before = dict(vars(args))  # what SGLang notes of a resolution; the settings themselves it does not write
    try:
        select_linker(args, value)
        _resolve_with_pages(resolve, args)
    except Exception as error:  # noqa: BLE001  the engine starts without pagetier
        _restore(args, before)
        _deselect_linker(args)
        return error
    return None


def _resolve_with_pages(resolve: Callable[[Any], None], args: Any) -> None:
    """Resolves settings; with one token a page if SGLang rejects the size that choose_page_size() has set."""
    before = dict(vars(args))
    try:
        resolve(args)
        _require_whole_pages(args)
    except Exception:
        if not _chosen(args):
            raise
        _restore(args, before)
        _resolve_with_one_token(resolve, args)


def _require_whole_pages(args: Any) -> None:
    """Rejects the page size that was chosen if SGLang's launcher would, after the resolution."""
    if not (tokens := _chosen(args)):
        return
    from sglang.srt.arg_groups.model_override_base import resolving_view

    chunk = resolving_view(args).chunked_prefill_size
    if chunk > 0 and chunk % tokens:
        raise ValueError(f"chunks of prefill of {chunk} tokens are no multiple of pages of {tokens} tokens")


def _resolve_with_one_token(resolve: Callable[[Any], None], args: Any) -> None:
    args.page_size = 1
    try:
        resolve(args)
    except Exception:
        args.page_size = None  # as it was given
        raise


def _chosen(args: Any) -> int:
    """Returns the page size that choose_page_size() has set; 0 if it has not."""
    declared: dict[str, Any] = dict(getattr(args, "_resolved_overrides", ())) if _is_known() else {}
    return int(declared.get(_CHOSEN_BY, {}).get("page_size", 0))


def choose_page_size(args: Any, step: Callable[[Any], None]) -> None:
    """Sets the page size with which pages fill frames, where SGLang would take one token and pagetier is in use.

    Args:
        args: SGLang's ServerArgs, in which all other settings of the cache are resolved.
        step: The step of SGLang's resolution that this one follows.
    """
    step(args)
    try:
        if _in_use(args) and (tokens := _page_tokens(args)):
            from sglang.srt.arg_groups.overrides import declare_resolution

            declare_resolution(args, _CHOSEN_BY, page_size=tokens)
    except Exception:
        log.debug("pagetier leaves the page size to SGLang", exc_info=True)


def _page_tokens(args: Any) -> int:
    from sglang.srt.arg_groups.model_override_base import attention_backends_of, model_config_of, resolving_view
    from sglang.srt.configs.hybrid_arch import mambaish_config

    view, model = resolving_view(args), model_config_of(args)
    return chosen_page_tokens(view, attention_backends_of(view), model, mambaish_config(model))


def _in_use(args: Any) -> bool:
    """Returns whether pagetier is SGLang's linker or its HiCache's storage, by the variable or by flags.

    Raises:
        UnsupportedError: pagetier will cache nothing, because of a flag.
        ValueError: The same, because of a setting.
    """
    if any(getattr(args, name) for name in _OTHER_CACHES):
        return False
    if args.enable_unified_cache_external_linker:
        return _is_linker(args.unified_cache_external_linker_config or {})
    return args.enable_hierarchical_cache and args.hicache_storage_backend == "dynamic" and _is_storage(args)


def _is_linker(config: Mapping[str, Any]) -> bool:
    """Returns whether a linker is pagetier's. Raises the error of settings that pagetier will reject."""
    if config.get("linker") != _LINKER:
        return False
    read_settings(config.get("linker_extra_config", {}))
    return True


def _is_storage(args: Any) -> bool:
    """Returns whether a storage is pagetier's. Raises the error of settings and flags that pagetier will reject."""
    from sglang.srt.arg_groups.model_override_base import model_config_of, resolving_view
    from sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller import HybridCacheController

    from pagetier.client.engines.sglang.engine.namespace import EngineFacts
    from pagetier.client.engines.sglang.storage.setup import storage_settings

    config, *_ = HybridCacheController.parse_storage_backend_extra_config(args.hicache_storage_backend_extra_config)
    if config.get("class_name") != _STORAGE:
        return False
    storage_settings(config, EngineFacts(VERSION, model_config_of(args), resolving_view(args)))
    return True


def _selected_by_switch(args: Any) -> bool:
    config = args.unified_cache_external_linker_config
    return isinstance(config, dict) and bool(config.get("linker_extra_config", {}).get("switch"))


def select_linker(args: Any, value: str) -> None:
    """Selects the linker.

    Raises:
        UnsupportedError: A flag excludes it, or the version of SGLang.
        ValueError: A setting in the value is wrong.
    """
    require_known_version()
    given = settings_of(value, LinkerSettings)
    read_settings(given)
    if flag := excluding_flag(args):
        raise UnsupportedError(f"{flag} is set")
    args.enable_unified_cache_external_linker = True
    args.unified_cache_external_linker_backend = "dynamic"
    args.unified_cache_external_linker_config = {
        "linker": _LINKER,
        "linker_module_path": _MODULE,
        "linker_extra_config": given,
    }


def excluding_flag(args: Any) -> str:
    """Returns the flag that excludes the linker; "" if there is none."""
    if args.disaggregation_decode_retraction_backup == "host_pool":
        return "--disaggregation-decode-retraction-backup host_pool"
    set_flags = [flag for name, flag in _EXCLUDING.items() if getattr(args, name)]
    if not set_flags:
        return ""
    configs = f"{args.unified_cache_external_linker_config} {args.hicache_storage_backend_extra_config}"
    named = next((name for name in (_LINKER, _STORAGE) if name in configs), "")
    return f"{set_flags[0]} (which names {named})" if named else set_flags[0]


def _restore(args: Any, before: dict[str, Any]) -> None:
    """Undoes a failed resolution."""
    vars(args).clear()
    vars(args).update(before)


def _deselect_linker(args: Any) -> None:
    """Undoes select_linker()."""
    if _selected_by_switch(args):
        args.enable_unified_cache_external_linker = False
        args.unified_cache_external_linker_backend = "mooncake"
        args.unified_cache_external_linker_config = None
