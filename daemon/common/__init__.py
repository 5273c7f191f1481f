"""Helpers for all of the daemon: exit codes, log throttling, histograms, progress, systemd notification."""
