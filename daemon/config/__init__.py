"""The daemon's configuration: the table of settings, its sources, validation and reload."""
