"""
From a name to bytes: models on a hub and on disk, GGUF files, KL base files.
The only place that knows a file's structure. Nothing here decodes a weight.
"""
