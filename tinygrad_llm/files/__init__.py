"""
From a name to packed rows: models on a hub and on disk, the bytes of GGUF files, the quantised types.
The only place that knows a byte layout. Nothing here knows an architecture, or computes a product.
"""
