"""bench/plot.py: the pictures of the docs show the results files that the README's tables show."""
import re

import pytest
from bench import plot
from tests.tools import readme_figures as figures

def source(path) -> str: return re.search(r"<dc:source>(.*)</dc:source>", path.read_text())[1]

@pytest.mark.parametrize("name", plot.DRAWN)
def test_the_pictures_are_current(name):
  """Else: make plot. No matplotlib is needed here."""
  for look in plot.LOOKS:
    path = plot.PICTURES / f"{name}-{look.name}.svg"
    assert source(path) == plot.stamp(name), path
    assert path.stat().st_size < 100_000

def test_files_of_a_picture():
  assert plot.sources("ratio")[0] == figures.DECODE and set(plot.sources("ratio")[1:]) < set(figures.PROMPTS)
  assert plot.stamp("trained") == f"{figures.TRAINED} {figures.load(figures.TRAINED)['date']}"
  for name in plot.DRAWN:
    for file in plot.sources(name): assert file.removesuffix(".json") in plot.caption(name)

def test_ratios_are_the_tables():
  rows, prompts = plot.decode_rows(), plot.prompt_rows()
  assert [row.ratio for row in rows] == sorted((row.ratio for row in rows), reverse=True)
  for row in rows: assert f"| {row.columns[0]} |\n" in figures.figures() and row.ratio < row.limit
  for row in prompts.values(): assert f" | {row.columns[0]} |\n" in figures.prompts() and row.limit is None
  assert prompts.keys() <= {row.label for row in rows}

def test_the_limit_is_bandwidth_over_bytes(monkeypatch):
  def row(peer, ts, vs): return {"test": "tg8", "peer": peer, "median_ts": ts, "vs": vs}
  model = {"model": "llama 1B Q8_0", "bandwidth_gbs": [1.0, 2.0, 3.0], "bytes_per_token": 10**8,
           "rows": [row(figures.OURS, 15.0, {figures.LLAMA: 1.5}), row(figures.LLAMA, 10.0, {})]}
  monkeypatch.setattr(plot, "load", lambda file: {"models": [model]})
  assert plot.decode_rows() == [plot.Row("Q8_0", 1.5, ("1.50",), 2.0)]

def test_names_of_models():
  assert plot.model_name("gemma-3-270m-Q4_K_M.gguf") == "gemma-3-270m"
  assert plot.model_name("SmolLM2-135M-Instruct.Q4_1.gguf") == "SmolLM2-135M"
  assert plot.model_name("bundled") == "bundled"

@pytest.mark.parametrize("name", plot.DRAWN)
def test_draw(name, tmp_path):
  pytest.importorskip("matplotlib")
  light, dark = (plot.draw(name, look, tmp_path / "pictures") for look in plot.LOOKS)
  assert source(light) == source(dark) == plot.stamp(name)
  assert light.read_text() != dark.read_text() and "<text" in light.read_text()
  before = light.read_bytes()
  assert plot.draw(name, plot.LOOKS[0], tmp_path / "pictures").read_bytes() == before
