"""
What people see and type in a terminal: the chat, its line editing and commands, wrapped text, a prompt from a pipe.
A model is used through the methods of engine.LLM: no tensors, no templates, and no import of tinygrad at the top.
"""
