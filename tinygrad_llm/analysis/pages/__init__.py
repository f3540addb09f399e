"""
HTML pages, each a single file that needs no network: a step as a timeline. The modules in analysis/ make the numbers.
"""
