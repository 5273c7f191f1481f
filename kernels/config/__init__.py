"""Settings of the copies, and the file that they are read from."""
