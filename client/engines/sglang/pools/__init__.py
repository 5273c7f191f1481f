"""SGLang's pools as layer groups, for the linker and the storage backend."""
