"""Events that affect all processes of a host at once: a daemon, its disk worker and separate engine processes."""
