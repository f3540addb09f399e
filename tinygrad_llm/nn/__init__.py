"""
The model: its configuration and its layers, in the simplest tensor code that is right.
This is the only place that knows an architecture. It has no kernels and no devices, and asks for tensors by name.
"""
