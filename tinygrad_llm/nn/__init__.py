"""
What is computed: a model's configuration and its layers, in the simplest tensor code that is right.
The only place that knows an architecture. No kernels, no devices, no files beyond the tensors that it asks for by name.
"""
