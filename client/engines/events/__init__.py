"""KV cache events, for routers: which pages came into a tier or left it. The engines' adapters word them."""
