"""Random shapes, types and architectures without experts, against the float64 reference; see random_models.py."""
import pytest
from tests.tools.random_models import process, seeds_of_today
from tests.tools.random_shapes import DRAWN, draw, rows, step_of

def test_random_rows_are_whole_blocks():
  """The rows of every seed's model are whole blocks, or a day's test models could not be written."""
  drawn = [draw(seed).model for seed in range(3000)]
  assert {model["arch"] for model in drawn} == {*DRAWN}
  for model in drawn: assert [n % step_of(model["types"]) for n in rows(model)] == [0] * len(rows(model)), model

@pytest.mark.parametrize("seed", seeds_of_today(experts=False))
def test_random_model(seed):
  print(f"replay: python tests/tools/random_models.py --seed {seed}")
  found = process(seed)
  assert "error" not in found, f"{found['error']}\n{draw(seed)}\npython tests/tools/random_models.py --seed {seed}"
