"""How the daemon is: one report for each part of it, put together in daemon_status.py and published by publisher.py."""
