"""This project as a peer, with the patches that the environment leaves on. See peer.py."""
import pathlib
import sys
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import gc, hashlib, importlib.metadata
from typing import Any
import numpy as np
from tinygrad.engine.jit import _TinyJit
from tinygrad.uop.ops import Ops
from bench.peer import serve
from tinygrad_llm import load, patches
from tinygrad_llm.bench import Runner, Test

class TinygradLLM:
  runner: Runner

  def load(self, model: str, ids: list[int], threads: int, settings: dict[str, Any]) -> str:
    """
    Loads the model; see Worker.

    threads: not used, as NUM_CPU_THREADS has set it. settings: `prompts` says if prompts follow, which need compiling.
    """
    llm, self.prompts = load(model, max_context=len(ids)), settings["prompts"]
    self.runner = Runner(llm, ids)
    return f"tinygrad {importlib.metadata.version('tinygrad')}, patches: {', '.join(patches.apply()) or 'none'}"

  def time(self, n_prompt: int, n_gen: int, n_depth: int, passes: int) -> int:
    self.runner.fill(n_depth)
    self.runner.generate(1, n_depth)
    return self.runner.time(Test(n_prompt, n_gen, n_depth), passes)

  def logits(self, n: int) -> np.ndarray:
    return self.runner.prompt(n) if self.prompts else [self.runner.step(i) for i in range(n)][-1].copy()

  def kernels(self) -> str:
    steps = [x.captured.linear for x in gc.get_objects() if isinstance(x, _TinyJit) and x.captured]
    if not steps: raise ValueError("no step has run yet")
    sources = {u.src[2].arg for step in steps for u in step.toposort() if u.op is Ops.PROGRAM}
    return hashlib.sha256("\0".join(sorted(sources)).encode()).hexdigest()

if __name__ == "__main__": serve(TinygradLLM())
