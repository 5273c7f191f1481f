"""Power loss: the writes and syncs of a process are recorded, and each disk that may result is opened by another."""
