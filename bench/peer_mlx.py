"""
mlx-lm as a peer, on a directory that mlx_model.py wrote. See peer.py.

The peer runs on Apple's GPU, or on the CPU if DEV says so or there is no GPU. On a CPU, MLX computes quantised products
in one thread; there the peer checks numbers and is no rival. A prompt is fed as in mlx-lm: all tokens but the last in
steps of 2,048, without logits, then the last. The peer needs only mlx-lm and numpy.
"""
import pathlib
import sys
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import importlib.metadata
import os
from typing import Any
import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import make_prompt_cache, trim_prompt_cache
from mlx_lm.utils import load_model
from bench.peer import CachedPositions, serve

STEP = 2048

class MLX(CachedPositions):
  model: Any
  cache: Any

  def load(self, model: str, ids: list[int], threads: int, settings: dict[str, Any]) -> str:
    """Loads the model; see Worker. threads: not used, as the environment has set it for the libraries that read it."""
    if os.environ.get("DEV", "CPU").split(":")[0] == "CPU": mx.set_default_device(mx.cpu)
    elif mx.metal.is_available(): mx.set_wired_limit(mx.device_info()["max_recommended_working_set_size"])
    self.ids, self.model = ids, load_model(pathlib.Path(model))[0]
    self.cache = make_prompt_cache(self.model)
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("mlx", "mlx-lm"))
    return f"{versions} on {mx.default_device()}"

  def keep(self, n: int) -> None:
    """Drops all positions but the first n."""
    trim_prompt_cache(self.cache, self.cache[0].offset - n)

  def feed(self, first: int, last: int) -> mx.array:
    """Computes ids[first:last] at these positions. Returns (vocab_size,) float32 logits after the last."""
    for start in range(first, last - 1, STEP):
      self.model(mx.array(self.ids[start:min(last - 1, start + STEP)])[None], cache=self.cache)
      mx.eval([layer.state for layer in self.cache])  # the logits are never computed
    logits = self.model(mx.array([[self.ids[last - 1]]]), cache=self.cache)[0, -1].astype(mx.float32)
    mx.eval(logits)
    return logits

  def logits(self, n: int) -> np.ndarray:
    self.restart()
    return np.array(self.feed(0, n))

if __name__ == "__main__": serve(MLX())
