"""
Text to token ids and back: tokenizers, chat templates, stop strings, thinking. No module here uses tensors.
"""
