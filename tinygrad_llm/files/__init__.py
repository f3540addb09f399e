"""
Model files: models on a hub and on disk, GGUF files, KL base files.
Only this package knows a file's structure. It does not decode weights.
"""
