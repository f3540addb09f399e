"""
llama.cpp as a peer, through llama-cpp-python's C interface. See peer.py.

The settings are extra_bufts, whether weights are repacked (for AMX, if the build has it), and flash, whether attention
is fused. If the build supports a GPU, the whole model runs there, or nothing with DEV=CPU. The peer needs only
llama-cpp-python and numpy, so it may run under another interpreter.
"""
import pathlib
import sys
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import os
from typing import Any
import llama_cpp as lc
import numpy as np
from bench.peer import CachedPositions, serve

class LlamaCpp(CachedPositions):
  model: Any
  context: Any

  def load(self, model: str, ids: list[int], threads: int, settings: dict[str, Any]) -> str:
    self.silence = lc.llama_log_callback(lambda *_: None)  # kept: the library calls it
    lc.llama_log_set(self.silence, None)
    lc.llama_backend_init()
    mp = lc.llama_model_default_params()
    on_gpu = os.environ.get("DEV", "CPU").split(":")[0] != "CPU"
    mp.use_extra_bufts, mp.n_gpu_layers = settings["extra_bufts"], 999 if on_gpu else 0
    self.ids, self.model = ids, lc.llama_model_load_from_file(model.encode(), mp)
    if not self.model:  # llama.cpp knows DeepSeek-V2-Lite by its layers; with fewer, it needs the queries' rank
      self.overrides: Any = (lc.llama_model_kv_override * 2)()  # the second ends them
      self.overrides[0].key, mp.kv_overrides = b"deepseek2.attention.q_lora_rank", self.overrides  # 0
      self.model = lc.llama_model_load_from_file(model.encode(), mp)
    if not self.model: raise ValueError(f"llama.cpp cannot load {model}")
    cp = lc.llama_context_default_params()
    cp.n_ctx, cp.n_threads, cp.n_threads_batch = len(ids), threads, threads
    cp.offload_kqv = cp.op_offload = on_gpu
    cp.flash_attn_type = lc.LLAMA_FLASH_ATTN_TYPE_ENABLED if settings["flash"] else lc.LLAMA_FLASH_ATTN_TYPE_DISABLED
    self.context = lc.llama_init_from_model(self.model, cp)
    if not self.context: raise ValueError(f"llama.cpp cannot make a context of {len(ids)} positions")
    self.batch = lc.llama_n_batch(self.context)
    return f"llama-cpp-python {lc.__version__}, {lc.llama_print_system_info().decode().strip(' |')}"

  def keep(self, n: int) -> None:
    """Drops all positions but the first n."""
    lc.llama_memory_seq_rm(lc.llama_get_memory(self.context), 0, n, -1)

  def feed(self, first: int, last: int) -> None:
    """Computes ids[first:last] at these positions, and the logits after the last."""
    for start in range(first, last, self.batch):
      part = self.ids[start:min(last, start + self.batch)]
      tokens = (lc.llama_token * len(part))(*part)  # the batch points to it
      if code := lc.llama_decode(self.context, lc.llama_batch_get_one(tokens, len(part))):
        raise ValueError(f"llama_decode returned {code}")
      lc.llama_synchronize(self.context)

  def logits(self, n: int) -> np.ndarray:
    self.restart()
    self.feed(0, n)
    vocab_size = lc.llama_vocab_n_tokens(lc.llama_model_get_vocab(self.model))
    return np.ctypeslib.as_array(lc.llama_get_logits_ith(self.context, -1), (vocab_size,)).copy()

if __name__ == "__main__": serve(LlamaCpp())
