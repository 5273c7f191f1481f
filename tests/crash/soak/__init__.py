"""Long runs: a mixed load with a death or a fault every few seconds, and proof that nothing grows and nothing slows."""
