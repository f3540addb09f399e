"""LLM.prepare: afterwards streams come and go, and nothing is captured or compiled."""
import numpy as np
import pytest
import tinygrad_llm
from tinygrad import codegen
from tinygrad.engine.jit import _TinyJit

@pytest.mark.parametrize("arch", ["llama", "lfm2"])
def test_nothing_compiles_after_prepare(model_file, monkeypatch, arch):
  llm = tinygrad_llm.load(str(model_file(arch=arch, layers=3, vocab=320)), max_context=256, chunk=32)
  llm.prepare(3)
  prompts = [np.random.default_rng(i).integers(3, 320, 5 + 31 * i).tolist() for i in range(4)]
  alone = [list(llm.generate(prompt, 6, ignore_eos=True)) for prompt in prompts]
  def refuse(*_, **__): raise AssertionError("something was compiled")
  monkeypatch.setattr(codegen, "full_rewrite_to_sink", refuse)
  jits = [step for steps in llm.engine.steps._decodes.values() for step in steps]
  assert sum(isinstance(jit, _TinyJit) and jit.captured is not None for jit in jits) == len(jits) * 3 // 4
  streams = [llm.stream(prompt, max_tokens=6, ignore_eos=True) for prompt in prompts]
  for stream, wanted in zip(streams, alone): assert [*stream] == wanted

def test_number_of_streams(model_file):
  llm = tinygrad_llm.load(str(model_file(arch="llama", layers=1, vocab=320)), max_context=64)
  llm.prepare(2.0)
  for streams in (0, 9, 1.5, "x"):
    with pytest.raises(tinygrad_llm.InputError, match="streams"): llm.prepare(streams)
