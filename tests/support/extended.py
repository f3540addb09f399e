"""What `make test` leaves to `make extended`: of many cases that are alike, all but a few."""
from collections.abc import Iterable
from typing import Any

import pytest

extended = pytest.mark.extended


def sample(cases: Iterable[Any], kept: Iterable[Any]) -> list[Any]:
  """The cases of a parametrized test, each a value or a tuple of values; `make test` runs those that are `kept`."""
  cases, kept = list(cases), list(kept)
  assert kept and all(case in cases for case in kept), "kept: not among the cases"
  return [pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=() if case in kept else extended)
          for case in cases]
