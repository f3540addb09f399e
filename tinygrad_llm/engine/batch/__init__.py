"""Many sequences at once: rows of a step, blocks of the KV cache, shared prefixes, who runs next."""
