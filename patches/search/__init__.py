"""
Searching schedules: what a kernel will cost, known before it is compiled. README.md explains the cost model.
Nothing here runs a kernel, or knows a model.
"""
