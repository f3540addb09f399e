"""
What a model runs on, and what it compiled to: devices, their compilers and memory, captures, programs.
Nothing here knows a model, a file or a quantised type.
"""
