"""What the host provides: memory, control groups, mounts, NUMA policy, peer credentials."""
