"""The commands of `pagetier` that run in a client: replay and calibrate."""
