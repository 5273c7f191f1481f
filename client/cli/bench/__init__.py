"""`pagetier-bench`: measures an engine on a user's own host, with and without pagetier."""
