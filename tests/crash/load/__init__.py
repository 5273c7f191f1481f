"""As many attached processes as there are slots, all storing and loading: nothing refused that fits, nobody starves."""
