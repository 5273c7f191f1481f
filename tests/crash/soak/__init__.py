"""Long runs: a mixed load with a death or a fault every few seconds, and a proof that nothing grows or slows down."""
