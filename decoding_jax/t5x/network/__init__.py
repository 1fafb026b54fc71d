"""A T5X network as a language model: adapter, cache, forced tokens and callbacks."""
