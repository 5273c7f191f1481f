"""Power loss: what a process writes and syncs is recorded, and what a disk may be left with is opened by another."""
