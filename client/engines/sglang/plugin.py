"""SGLang's door to pagetier: it calls register() in each process, through the entry point `sglang.srt.plugins`.

In the processes of schedulers, register() hooks SGLang's radix cache (linker/cache_hooks.py), before SGLang applies the
hooks of all plugins. If the variable PAGETIER means on, it also hooks ServerArgs.resolve_once(), which every launcher
calls once, to select the external linker. Settings that SGLang rejects are resolved again without it.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any, Final

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from pagetier.client.engines.sglang.engine.settings import LinkerSettings, read_settings
from pagetier.client.engines.sglang.engine.version import KNOWN_VERSIONS, VERSION, require_known_version
from pagetier.client.engines.switch import log_no_effect, settings_of, switched_on
from pagetier.client.engines.unsupported import UnsupportedError, reported_as_unsupported

log = logging.getLogger("pagetier.sglang")

_RESOLVE_ONCE: Final = "sglang.srt.server_args.ServerArgs.resolve_once"
_SCHEDULER: Final = "sglang.srt.managers.scheduler"
_LINKER: Final = "PagetierLinker"
_STORAGE: Final = "PagetierStorage"
_MODULE: Final = "pagetier.client.engines.sglang"

_EXCLUDING: Final = {
    "enable_hierarchical_cache": "--enable-hierarchical-cache",
    "hicache_storage_backend": "--hicache-storage-backend",
    "enable_lmcache": "--enable-lmcache",
    "enable_flexkv": "--enable-flexkv",
    "disable_radix_cache": "--disable-radix-cache",
    "radix_cache_backend": "--radix-cache-backend",
    "enable_unified_memory": "--enable-unified-memory",
    "enable_hisparse": "--enable-hisparse",
    "enable_kv_cache_sharding": "--enable-kv-cache-sharding",
    "encoder_only": "--encoder-only",
    "enable_unified_cache_external_linker": "--enable-unified-cache-external-linker",
    "unified_cache_external_linker_config": "--unified-cache-external-linker-config",
}
"""The settings with which SGLang has no linker, or another one, and their flags."""


def register() -> None:
    """Registers pagetier's hooks. SGLang applies them when all plugins are loaded."""
    with reported_as_unsupported(log):
        if VERSION in KNOWN_VERSIONS and _SCHEDULER in sys.modules:
            from pagetier.client.engines.sglang.linker.cache_hooks import register_hooks

            register_hooks()
        if switched_on():
            HookRegistry.register(_RESOLVE_ONCE, resolve_with_linker, HookType.AROUND)


def resolve_with_linker(resolve: Callable[[Any], None], args: Any) -> None:
    """Resolves SGLang's ServerArgs: with the linker, or without it and with one line in the log.

    Args:
        resolve: SGLang's own method.
        args: SGLang's ServerArgs. A copy in another process is resolved already.
    """
    value = switched_on()
    if not value or getattr(args, "_resolution_finished", False):
        resolve(args)
        return
    before = dict(vars(args))  # what SGLang notes of a resolution; the settings themselves it does not write
    try:
        select_linker(args, value)
        resolve(args)
    except Exception as error:  # noqa: BLE001  the engine starts without pagetier
        refusal = error
    else:
        return
    _deselect_linker(args, before)
    resolve(args)  # if the linker was not the reason, this raises what it would raise without pagetier
    log_no_effect(log, value, refusal)


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


def _deselect_linker(args: Any, before: dict[str, Any]) -> None:
    """Undoes select_linker() and a failed resolution."""
    vars(args).clear()
    vars(args).update(before)
    linker = args.unified_cache_external_linker_config
    if isinstance(linker, dict) and linker.get("linker_extra_config", {}).get("switch"):
        args.enable_unified_cache_external_linker = False
        args.unified_cache_external_linker_backend = "mooncake"
        args.unified_cache_external_linker_config = None
