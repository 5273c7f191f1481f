"""The state of a running cache, as any process that may observe reads it from shared memory."""
