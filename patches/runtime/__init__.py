"""
Launches of kernels: graphs, their dependencies and sizes, views of buffers, lost devices. Nothing here changes a
kernel.
"""
