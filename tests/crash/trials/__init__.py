"""What a host does to a whole company at once: a daemon, its disk worker, and engines in processes of their own."""
