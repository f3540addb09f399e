"""The memory of layers for earlier tokens: KV caches, recurrent states, and places in them. A room of nn/."""
