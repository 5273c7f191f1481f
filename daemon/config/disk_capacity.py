"""Computes how many frames, and so how many pages, fit under the caps of a configuration."""

from __future__ import annotations

from pagetier.daemon.config.disk_options import DeviceOptions
from pagetier.daemon.config.schema import Config
from pagetier.shm.units import format_size
from pagetier.tiers.capacity import frames_under


def frames_of_disk(config: Config) -> int:
    """Returns the number of frames for which the disk tier has room. The rest of its cap goes to headers and trees."""
    return sum(frames_of_device(device, config.arena.frame_size) for device in config.disk.devices)


def frames_of_device(device: DeviceOptions, frame: int) -> int:
    """Returns the number of frames for which one device has room, compressed to nothing less."""
    return frames_under(device.store, device.size, device.environments, frame, device.compress)


def device_capacity_text(device: DeviceOptions, frame: int) -> str:
    """Returns "room for 74.9 MiB in 19,180 frames" for one device."""
    return _room(frames_of_device(device, frame), frame)


def disk_capacity_text(config: Config) -> str:
    """Returns "room for 74.9 MiB in 19,180 frames" for the disk tier."""
    return _room(frames_of_disk(config), config.arena.frame_size)


def capacity_notes(config: Config) -> dict[str, str]:
    """Returns what fits under each cap, by the path of its setting."""
    arena = {"arena.size": _room(config.arena.frames, config.arena.frame_size)}
    return arena | ({"disk.size": disk_capacity_text(config)} if config.disk.size else {})


def _room(frames: int, frame: int) -> str:
    return f"room for {format_size(frames * frame)} in {frames:,} frames"
