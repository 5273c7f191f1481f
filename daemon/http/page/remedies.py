"""What to do after a notable event of the log, for those of which the line does not say it. The names are events."""

from __future__ import annotations

from typing import Final

_LOG: Final = "Read the log of that moment."
_DOCTOR: Final = "Run pagetier doctor, which says what is wrong and how to mend it."
_QUOTA: Final = "Let engines use fewer namespaces at once."

REMEDIES: Final = {
    "arena_large": "Set arena.size to at most half of the host's memory, then stop and start the daemon.",
    "arena_pinned": "Finish or stop the engines that pin the pages (see Engines), or give the arena more memory.",
    "arena_short": "Free memory on the host, or set a smaller arena.size.",
    "descriptors": "Raise the daemon's limit of open files (LimitNOFILE).",
    "disk_device_down": _DOCTOR,
    "disk_down": _DOCTOR,
    "disk_open": "Engines compute the lost pages again. If no setting was changed, check the disk.",
    "disk_size": "Set disk.size to what the file system can hold.",
    "disk_trouble": _DOCTOR,
    "disk_unwritten": "Engines compute these pages again. Check the disk before the next stop.",
    "fleet_down": _DOCTOR,
    "fleet_given_up": _DOCTOR,
    "fleet_note": "Compare remote.key_file on all hosts, or change prefix or buffers in remote.url, as it says.",
    "fleet_trouble": _DOCTOR,
    "fleet_write_trouble": _DOCTOR,
    "frame_size": "Stop the daemon; start it once with that size and --fresh: memory and the disk tier are emptied.",
    "http_ended": "Nothing, if it happens once: engines do not notice. Else report it with the log.",
    "http_full": "Close HTTP connections, or find the caller that keeps them open.",
    "http_invalid": "Report it with the log.",
    "huge_pages": "Stop and start the daemon while memory is not fragmented.",
    "index_short": "Stop and start the daemon: the next one makes an index for the larger disk.",
    "log_lost": "Let the reader of the daemon's stderr read on.",
    "lookups_not_counted": "Free memory on the host.",
    "namespace_dropped": _QUOTA,
    "namespaces_dropped": _QUOTA,
    "namespaces_full": _QUOTA,
    "peer_refused": "Check the configuration of the process that connects, and access.",
    "pins_bounded": "Raise arena.process_share, or let the engine load before it matches more.",
    "process_died": "Nothing, if the engine was stopped. Else read its log.",
    "quotas_failed": "Free memory on the host, and reload the daemon.",
    "reload_refused": "Correct the configuration (pagetierd --check), and reload the daemon.",
    "segments_removed": "Restart the daemon.",
    "slot_unjudged": "If the process is gone, free its slot with pagetier reclaim.",
    "slot_unlocked": "If the process is gone, free its slot with pagetier reclaim.",
    "socket_lost": "Make the socket's folder writable for the daemon again.",
    "socket_restored": "Keep cleaners of temporary files away from the socket's folder.",
    "socket_shut": "Set access.socket_mode so that the users in access can open the socket.",
    "token_refused": "Make http.token_file readable for the daemon's user only, and reload the daemon.",
    "users_unmapped": "Remove these users from access, or map them into the daemon's user namespace.",
    "worker_refused": "Run the fleet's worker as the daemon's user.",
}


def remedy(event: str, level: str) -> str:
    """Returns what to do after an event; "" if there is nothing to do."""
    return "" if level == "info" else REMEDIES.get(event, _LOG)
