"""Disk faults: system calls of the disk worker kill it, fail, are partial or hang, and its files are changed."""
