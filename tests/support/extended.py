"""Marks similar cases of a test that only `make extended` runs; `make test` runs a few of them."""
from collections.abc import Iterable
from typing import Any

import pytest

extended = pytest.mark.extended


def sample(cases: Iterable[Any], kept: Iterable[Any]) -> list[Any]:
  """Parameters of a parametrized test, each a value or a tuple of values; `make test` runs only the `kept` ones."""
  cases, kept = list(cases), list(kept)
  assert kept and all(case in cases for case in kept), "kept: not among the cases"
  return [pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=() if case in kept else extended)
          for case in cases]
