"""Requests against the shared index: reservations, flushes, eviction, quotas, reaping of dead processes."""
