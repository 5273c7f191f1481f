"""Faults of the disk: calls of the tier's worker that end it, fail, do half or hang, and files that change under it."""
