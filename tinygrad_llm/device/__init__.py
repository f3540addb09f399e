"""
The device that a model runs on: its compilers and drivers, buffers and memory, and captured functions.
Nothing here knows a model, a file or a quantised type.
"""
