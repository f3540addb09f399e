"""
Pages for a browser, each one file that needs no network: a step as a timeline. The numbers are made in analysis/.
"""
