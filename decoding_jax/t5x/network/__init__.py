"""A network of T5X as a language model: adapter, cache, forced tokens and callbacks."""
