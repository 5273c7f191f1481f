"""Random deaths: engines of several processes, the daemon and its disk worker are killed and stopped under load."""
