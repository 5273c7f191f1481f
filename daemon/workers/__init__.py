"""The worker processes of the tiers beyond the arena: started, watched and restarted."""
