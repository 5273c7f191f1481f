"""Deaths at failpoints: a build of the project whose failpoints kill or stop a process that the test chooses."""
