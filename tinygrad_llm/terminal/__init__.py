"""
The terminal interface: the chat, its line editing and commands, wrapped text, a prompt from a pipe. These modules use a
model only through the methods of engine.LLM. They use no tensors and no templates, and do not import tinygrad at the
top.
"""
