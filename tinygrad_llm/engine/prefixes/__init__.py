"""Prefixes of token ids that sequences share: the blocks of the KV pool, and the tree that finds them."""
