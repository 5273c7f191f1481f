"""Pinning the arena for GPUs."""
