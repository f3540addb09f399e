"""
What a layer asks and keeps of its positions: grouped-query and multi-head latent attention.
A mixer makes queries, and the keys and values that the cache holds; attention.py does the rest.
"""
