"""
Attention: positions in parts (flash decoding), and the kernels of a part for decode steps and prefill, on CPUs and
GPUs. Nothing here knows a model.
"""
