"""compile_time/implicit_inputs: a function's outputs are searched once; graphs before and after."""
import importlib

import pytest
from tests.compile_time.layers import layer
from tinygrad import Tensor, dtypes
from tinygrad_llm.patches import is_on
from tinygrad_llm.patches.compile_time import implicit_inputs

pytestmark = pytest.mark.skipif(not is_on("implicit_inputs"), reason="it is off")

def test_outputs_are_searched_once(monkeypatch):
  module, found = importlib.import_module("tinygrad.function"), []
  stock = module.invalid_outputs
  monkeypatch.setattr(module, "invalid_outputs", lambda graph: found.append(graph) or stock(graph))
  layer(Tensor.empty(5, 96), Tensor.empty(96, 96, dtype=dtypes.half))  # shapes that no other test uses
  assert len(found) == 2  # in the search for inputs, and here

def test_write_only_outputs_get_slots():
  """Write-only outputs of a graph get slots 0, 1, .. in order; other nodes stay."""
  module = importlib.import_module("tinygrad.function")
  assert module.renumber_invalid_outputs is implicit_inputs.renumber_invalid_outputs
  x = Tensor.empty(4)
  graph = (Tensor.invalids(4, dtype="float").assign(x) + Tensor.invalids(4, dtype="float").assign(x * 2) + x).uop
  outputs = [u for u in graph.toposort() if u in module.invalid_outputs(graph)]
  made = module.renumber_invalid_outputs(graph)
  again = [u for u in made.toposort() if u in module.invalid_outputs(made)]
  assert [u.arg.slot for u in again] == [0, 1] != [u.arg.slot for u in outputs]
  assert x.uop.base in made.toposort() and len(made.toposort()) == len(graph.toposort())
  assert module.renumber_invalid_outputs(x.uop) is x.uop
