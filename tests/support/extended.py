"""Marks similar cases of a test that only `make extended` runs; `make test` runs a few of them."""
from collections.abc import Iterable
from typing import Any

import pytest

extended = pytest.mark.extended
PARAM = type(pytest.param())


def sample(cases: Iterable[Any], kept: Iterable[Any]) -> list[Any]:
  """Parameters of a parametrized test, each a value or a tuple of values; `make test` runs only the `kept` ones."""
  cases, kept = list(cases), list(kept)
  assert kept and all(case in cases for case in kept), "kept: not among the cases"
  return [parameters(case, case in kept) for case in cases]


def some(cases: Iterable[Any], *places: int) -> list[Any]:
  """Like sample(), but with the places of the kept cases; a case may be a pytest.param with marks of its own."""
  cases = list(cases)
  kept = {range(len(cases))[i] for i in places}
  return [parameters(case, i in kept) for i, case in enumerate(cases)]


def parameters(case: Any, kept: bool) -> Any:
  more = () if kept else (extended,)
  if isinstance(case, PARAM): return pytest.param(*case.values, marks=(*case.marks, *more), id=case.id)
  return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=more)
