"""Helpers for all of the daemon: log throttling, histograms, progress, systemd notification."""
