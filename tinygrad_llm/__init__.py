"""Local LLM inference on tinygrad: `load` a GGUF file, then `logits`, `generate`, `chat`."""
from __future__ import annotations
import os, pathlib, time
from typing import TYPE_CHECKING
if not (_patches := pathlib.Path(__file__).with_name("patches")).is_dir(): raise ImportError(
  f"{_patches}: not a folder; it is a link to ../patches, and git or an archive made a file of it. Windows: turn the "
  "developer mode on, then git config core.symlinks true && git checkout -- tinygrad_llm/patches")
from tinygrad_llm.process import standard_streams
standard_streams.reserve()
from tinygrad_llm import patches
from tinygrad_llm.errors import DeviceError, InputError
from tinygrad_llm.patches.host.process_lock import lock
from tinygrad_llm.process.collector import keep_modules, without_collector
if TYPE_CHECKING: from tinygrad_llm.engine.llm import LLM

__version__ = "0.1.0"
__all__ = ["DeviceError", "InputError", "load"]

if patches.enabled():
  with without_collector():
    try: import tinygrad  # noqa: F401
    except Exception: pass  # an environment variable keeps it from starting: check_device() says which
    else: patches.apply()
    keep_modules()

def load(model: str | None = None, max_context: int = 4096, chunk: int = 256, dequantize: bool = False,
         progress: bool = False, ahead: bool = False, prompt_cache: str | os.PathLike[str] | None = None,
         prompt_cache_bytes: int = 4 << 30) -> LLM:
  """
  Loads a GGUF model.

  `model`: a path; None is the bundled default model.
  `max_context`: positions of KV cache, at most what the model was trained for.
  `chunk`: tokens of a prompt per forward pass. The logits are the same for any number.
  `dequantize`: expand quantised matrices to fp16, which takes more memory and changes the speed.
  `progress`: show bars on stderr while loading and compiling, if stderr is a terminal.
  `ahead`: on Linux's CPUs, compile what generate() needs in forks of this process while it reads the weights.

  `prompt_cache`: a folder that keeps what prompts and answers left in the KV cache, also for later processes. A prompt
  that begins like one of them reads only the rest. `prompt_cache_bytes`: the folder's size at most.

  The memory is freed by LLM.close(), at the end of `with tinygrad_llm.load(..) as llm:`, or when nothing refers to the
  model and its answers any more.
  InputError for a file, device or compiler that cannot be used; DeviceError, a kind of InputError, if the device fails.
  """
  with lock, without_collector():
    from tinygrad_llm.command import check_switches
    from tinygrad_llm.device.device import check_computes
    check_switches()
    start = time.perf_counter()
    check_computes()
    opened = time.perf_counter() - start
    from tinygrad_llm.device.release import forget_programs
    from tinygrad_llm.engine.closed import forget
    from tinygrad_llm.engine.llm import LLM
    forget_programs()  # programs of earlier models
    try:
      llm = LLM(model, max_context=max_context, chunk=chunk, dequantize=dequantize, progress=progress, ahead=ahead,
                prompt_cache=prompt_cache, prompt_cache_bytes=prompt_cache_bytes)
      llm.load_s += opened  # opening the device counts as loading
      return llm
    except BaseException as e:
      forget(e)
      raise
