"""
What a model runs on: the device, its compilers and drivers, its buffers and memory, captured functions.
Nothing here knows a model, a file or a quantised type.
"""
