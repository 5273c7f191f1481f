"""The control socket: accepts connections, limits them and dispatches requests."""
