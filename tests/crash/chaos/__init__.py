"""Random death: engines of several processes, daemon and disk worker under load, killed and stopped at any moment."""
