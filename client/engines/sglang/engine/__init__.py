"""What the linker and the storage backend know of the engine that they serve."""
