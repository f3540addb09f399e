"""Random shapes, types and architectures with experts, against the float64 reference; see random_models.py."""
import pytest
from tests.support.extended import extended
from tests.tools.random_models import draw, process, seeds_of_today

ONCE_WRONG = [pytest.param(14209, marks=extended)]  # an attention window that is one block of prefill attention

@pytest.mark.parametrize("seed", [*seeds_of_today(experts=True), *ONCE_WRONG])
def test_random_model(seed):
  print(f"replay: python tests/tools/random_models.py --seed {seed}")
  found = process(seed)
  assert "error" not in found, f"{found['error']}\n{draw(seed)}\npython tests/tools/random_models.py --seed {seed}"
