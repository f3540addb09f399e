"""
The cases of the kernel regression suite: models, steps and targets. See kernel_suite.py for the command.

  python tests/tools/kernel_cases.py --write CASE FILE      writes a case's GGUF without weights (a hole in the file),
                                                            for `python -m tinygrad_llm.kernels -m FILE`
"""
import argparse
import os
import pathlib
import platform
import sys
from dataclasses import replace
from typing import Any, NamedTuple

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from tests.support import synthetic_gemma4 as gemma4
from tests.support.synthetic import SHAPES, write_model

THREADS = 4  # of a CPU, fixed as the instruction sets are: the figures must not depend on the machine
TARGETS = ("CPU:x86-64-v3", "CPU:x86-64-v4", "CPU:sapphirerapids", "CPU:arm64",
           "CUDA:sm_80", "CUDA:sm_87", "CUDA:sm_89", "CUDA:sm_90", "CUDA:sm_100", "CUDA:sm_120", "NV:sm_90",
           "NV:PTX:sm_90", "METAL:Apple7", "METAL:Apple8", "METAL:Apple9")

class Step(NamedTuple):
  """
  prompt: tokens of a prefill chunk, 0 for a decode step; depth: tokens already in the KV cache.

  rows: sequences of a decode step.
  """
  prompt: int
  depth: int
  rows: int = 1

CHUNK, DEPTH, MAX_CONTEXT = 512, 4096, 8192
# all steps of a kind have the same kernels, because sizes that depend on the depth are symbolic
STEPS = {"decode": {"decode": Step(0, 0), "decode-4096": Step(0, DEPTH)},
         "prompt": {"prompt": Step(CHUNK, 0), "prompt-4096": Step(CHUNK, DEPTH)},
         "rows": {"rows-4096": Step(0, DEPTH, 8)}}

def _case(shape: str, types: str, **changed: Any) -> dict[str, Any]:
  """
  A real model's widths in two layers, which have the types of Q4_K_M's first half and of its last eighth.

  There is a layer of each kind where leading layers differ, or some have a sliding window.
  """
  return {"context": MAX_CONTEXT} | SHAPES[shape] | {"layers": 2, "types": types} | changed

CASES: dict[str, dict[str, Any]] = {
  "llama-1b-Q8_0": _case("llama-1b", "Q8_0", rope_freqs=False),
  "llama-1b-Q4_K_M": _case("llama-1b", "Q4_K_M", rope_freqs=False),
  "llama-1b-Q6_K": _case("llama-1b", "Q6_K", rope_freqs=False),  # Q6_K in q+k+v and gate+up, where the mix has none
  "llama-1b-F16": _case("llama-1b", "F16", rope_freqs=False),    # floats that are not repacked
  "llama-1b-BF16": _case("llama-1b", "BF16", rope_freqs=False),
  "smollm-135m-Q8_0": _case("smollm-135m", "Q8_0"),              # 576 wide, 9 heads: no powers of two
  "gemma-3-4b-Q4_0": _case("gemma-3-4b", "Q4_0", pattern=2),
  "qwen3-30b-a3b-Q4_K_M": _case("qwen3-30b-a3b", "Q4_K_M"),
  "olmoe-1b-7b-Q4_K_M": _case("olmoe-1b-7b", "Q4_K_M"),
  "deepseek-v2-lite-Q4_K_M": _case("deepseek-v2-lite", "Q4_K_M"),
  "gpt-oss-20b-MXFP4_MOE": _case("gpt-oss-20b", "MXFP4_MOE"),
  # a recurrent layer of each kind and one with attention
  "lfm2-1.2b-Q4_K_M": _case("lfm2-1.2b", "Q4_K_M"),
  "qwen35-4b-Q4_K_M": _case("qwen35-4b", "Q4_K_M", mixers=("delta", "attention")),
  "granite-4-h-3b-Q4_K_M": _case("granite-4-h-3b", "Q4_K_M"),
  "kimi-linear-48b-Q4_K_M": _case("kimi-linear-48b", "Q4_K_M"),
  # layers with a window and without, each with its own keys and with another layer's
  "gemma-4-e4b-Q4_K_M": _case("gemma-4-e4b", "Q4_K_M", layers=4, mixers=(gemma4.WINDOW, gemma4.FULL), parts={
    "gemma4": replace(SHAPES["gemma-4-e4b"]["parts"]["gemma4"], shared=2)}),
}

# plain heads; a window and sinks; latents
OF_ROWS = ("llama-1b-Q4_K_M", "gpt-oss-20b-MXFP4_MOE", "deepseek-v2-lite-Q4_K_M")
UNITS = [(case, kind) for case in CASES for kind in STEPS if kind != "rows" or case in OF_ROWS]

def targets_of(kind: str) -> tuple[str, ...]:
  """The targets with accepted figures of a kind of step: steps of rows have them on GPUs only."""
  return tuple(target for target in TARGETS if kind != "rows" or not target.startswith("CPU"))

# larger models, to show that two layers and a small model's widths are representative; no figures of them are accepted
LARGER = {"llama-1b-16L-Q4_K_M": CASES["llama-1b-Q4_K_M"] | {"layers": 16},
          "llama-8b-Q4_K_M": _case("llama-8b", "Q4_K_M", rope_freqs=False, tied=True)}

def write(case: str, path: str | pathlib.Path) -> pathlib.Path:
  """Writes a case's file without its weights."""
  return write_model(path, **(CASES | LARGER)[case], header=True)

def has_cuda_wheels() -> bool:
  """Whether NVIDIA publishes the wheels of the extra `cuda` for this machine."""
  return sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64")

def missing(target: str) -> str:
  """Why this machine cannot compile for a target; "" if it can."""
  needs_cuda = target.startswith(("CUDA", "NV"))
  return "NVIDIA makes no wheels of its compilers for this machine" if needs_cuda and not has_cuda_wheels() else ""

def environment() -> dict[str, str]:
  """A child's environment in which nothing changes kernels: this process's, without switches."""
  keep = ("PATH", "HOME", "PYTHONPATH", "TMPDIR", "LD_LIBRARY_PATH", "XDG_CACHE_HOME", "CACHEDB", "CC")
  return {name: os.environ[name] for name in keep if name in os.environ} | {"NUM_CPU_THREADS": str(THREADS)}

def main() -> None:
  parser = argparse.ArgumentParser(description="Write the header of a case of the kernel suite.")
  parser.add_argument("--write", nargs=2, required=True, metavar=("CASE", "FILE"), help=f"CASE: of {', '.join(CASES)}")
  case, path = parser.parse_args().write
  if case not in CASES | LARGER: parser.error(f"{case}: no such case; give one of {', '.join(CASES)}")
  print(write(case, path))

if __name__ == "__main__": main()
