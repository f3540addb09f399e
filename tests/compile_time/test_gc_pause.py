"""compile_time/gc_pause: garbage collection pauses while a graph is traced, scheduled or lowered."""
import gc

import pytest
from tests.compile_time.layers import layer
from tinygrad import Tensor, codegen, dtypes, tensor
from tinygrad.engine import realize
from tinygrad_llm.patches import is_on
from tinygrad_llm.patches.compile_time import gc_pause

pytestmark = pytest.mark.skipif(not is_on("gc_pause"), reason="it is off")

def test_gc_is_paused_during_call():
  seen: list[bool] = []
  def noted(*args: int, wrong: bool = False) -> int:
    seen.append(gc.isenabled())
    if wrong: raise ValueError
    return sum(args)
  paused = gc_pause.paused(noted)
  assert gc.isenabled() and paused(1, 2) == 3 and gc.isenabled()
  with pytest.raises(ValueError): paused(wrong=True)
  assert gc.isenabled()
  gc.disable()
  try: assert paused() == 0 and not gc.isenabled()
  finally: gc.enable()
  assert seen == [False] * 3

def test_gc_is_paused_during_scheduling(monkeypatch):
  seen, stock = [], tensor.create_linear_with_vars
  monkeypatch.setattr(tensor, "create_linear_with_vars", lambda sink: seen.append(gc.isenabled()) or stock(sink))
  (Tensor.empty(4) + 1).linear_with_vars()
  assert seen == [False] and gc.isenabled()

def test_few_collections_while_graphs_are_built(monkeypatch):
  """Tracing, scheduling and lowering trigger few collections, and many if the pause is disabled."""
  collected: list[str] = []
  def note(phase: str, _: dict[str, int]) -> None: collected.append(phase)
  def work() -> None:
    lazy = layer(Tensor.empty(6, 96), Tensor.empty(96, 96, dtype=dtypes.half))
    call = lazy.linear_with_vars()[0].src[0]
    codegen.full_rewrite_to_sink(*realize._get_call_to_compile(call))
  work()
  gc.callbacks.append(note)
  thresholds = gc.get_threshold()
  try:
    gc.set_threshold(50)
    work()
    often = len(collected)
    monkeypatch.setattr(gc, "disable", lambda: None)
    work()
  finally:
    gc.set_threshold(*thresholds)
    gc.callbacks.remove(note)
  assert 3 * often < len(collected) - often
