"""
How the blocks of each family of GGML types decode: expressions on words, and the rows of the table in files/quant.py.
A new type is a decode function and a row in its family's file. Nothing here reads files, packs, or knows a layout.
"""
