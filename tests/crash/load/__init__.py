"""As many attached processes as there are slots, all storing and loading: each gets its fair share."""
