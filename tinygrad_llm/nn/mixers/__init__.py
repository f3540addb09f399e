"""
The mixers, which project a layer's input to attention heads: grouped-query and multi-head latent attention.
A mixer makes queries, and the keys and values that the cache holds; attention.py does the rest.
linear_attention.py, conv.py and state.py are parts of recurrent layers.
"""
