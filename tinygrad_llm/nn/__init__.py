"""
The model: its configuration and its layers, in the simplest tensor code that is right.
This is the only place that knows an architecture. It has no kernels and no devices, and asks for tensors by name.
The table of architectures is archs.py. With it, reader.py makes a ModelConfig of a file's keys, and a LayerConfig for
each layer.
"""
