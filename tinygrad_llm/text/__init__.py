"""
Text to token ids and back: tokenizers, chat templates, stop strings, thinking. Nothing here knows a tensor.
"""
