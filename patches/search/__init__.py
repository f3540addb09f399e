"""
Searching schedules (BEAM): the space, its candidates, their measurement, and what is known of earlier searches.
cost/ knows what a kernel will cost before it is compiled; README.md explains that model. Nothing here knows a model
of language.
"""
