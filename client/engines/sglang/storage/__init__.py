"""The storage backend of SGLang's HiCache: stores and loads pages of the host pools."""
