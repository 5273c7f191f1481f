"""Deaths at every named point: a build of the project in which points end or stop a process, and who chooses them."""
