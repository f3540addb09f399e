"""Random shapes, types and architectures with experts, against the float64 reference; see random_models.py."""
import pytest
from tests.support.extended import extended
from tests.tools.random_models import process, seeds_of_today
from tests.tools.random_shapes import ONCE_WRONG, draw

SEEDS = [*seeds_of_today(experts=True), *(seed for seed in ONCE_WRONG if seed % 2)]

@extended
@pytest.mark.parametrize("seed", SEEDS)
def test_random_model(seed):
  print(f"replay: python tests/tools/random_models.py --seed {seed}")
  found = process(seed)
  assert "error" not in found, f"{found['error']}\n{draw(seed)}\npython tests/tools/random_models.py --seed {seed}"
