"""
Attention: positions are split into parts (flash decoding), and each part has kernels for decode steps and prefill, on
CPUs and GPUs. Nothing here knows a model.
"""
