"""Random shapes, types and architectures with experts, against the float64 reference; see random_models.py."""
import pytest
from random_models import draw, process, seeds_of_today

@pytest.mark.parametrize("seed", seeds_of_today(experts=True))
def test_random_model(seed):
  print(f"replay: python tests/tools/random_models.py --seed {seed}")
  found = process(seed)
  assert "error" not in found, f"{found['error']}\n{draw(seed)}\npython tests/tools/random_models.py --seed {seed}"
