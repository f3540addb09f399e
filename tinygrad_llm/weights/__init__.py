"""
Packed rows on a device and products with them: what a layer gets instead of plain tensors.
What the bits of a type mean is in quants/; which matrix is which is the layers' business.
"""
