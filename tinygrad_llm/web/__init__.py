"""
Pages for a browser, each one file that needs no network: a step as a timeline. What they show is made elsewhere.
"""
