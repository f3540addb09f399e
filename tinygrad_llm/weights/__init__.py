"""
Quantised matrices on a device and matmuls with them: layers get these instead of plain tensors.
The meaning of a type's bits is in quants/. The layers in nn/ know which matrix is which.
"""
