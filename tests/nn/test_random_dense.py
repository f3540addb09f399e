"""Random shapes, types and architectures without experts, against the float64 reference; see random_models.py."""
import pytest
from tests.tools.random_models import _step, draw, process, seeds_of_today

def test_random_rows_are_whole_blocks():
  """The rows of every seed's model are whole blocks, or a day's test models could not be written."""
  for model in (draw(seed).model for seed in range(3000)):
    widths = [model["dim"], model["ffn"], *([model["moe"].ffn] if "moe" in model else [])]
    assert [n % _step(model["types"]) for n in widths] == [0] * len(widths)

@pytest.mark.parametrize("seed", seeds_of_today(experts=False))
def test_random_model(seed):
  print(f"replay: python tests/tools/random_models.py --seed {seed}")
  found = process(seed)
  assert "error" not in found, f"{found['error']}\n{draw(seed)}\npython tests/tools/random_models.py --seed {seed}"
