"""
Schedule search (BEAM): the search space, its candidates, their measurement, and the results of earlier searches.
cost/ estimates a kernel's time before it is compiled; README.md explains that cost model. No module here knows a
language model.
"""
