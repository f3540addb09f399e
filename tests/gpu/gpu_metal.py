"""
Runs Metal kernels on the CPU, in a child process that uses the METAL device of tests/support/msl:

  errors = child.call(gpu_metal.of_case, "llama-1b-Q4_K_M", 70, 3, **gpu_metal.ENVIRONMENT).value
"""
import dataclasses
import pathlib
import re
import tempfile
from typing import Any, NamedTuple

import tinygrad_llm  # before tinygrad: it applies the patches
from tests.support.msl import ops_metal

ops_metal.install()

from tests.support import attention
from tests.gpu import gpu_matmuls
from tests.gpu import gpu_numbers
import numpy as np
from tests.gpu.gpu_matmuls import Case
from tests.tools.kernel_cases import CASES, CHUNK, MAX_CONTEXT
from tests.support.model_cases import MODELS, VOCAB as MODEL_VOCAB, sizes
from tests.support.msl.kernel import Fault, Kernel
from tests.support.reference import Reference, clear_choices
from tests.support.synthetic import write_model
from tinygrad import Device, Tensor

ENVIRONMENT = {"DEV": "METAL"}
AFTER = 4       # decode steps after a small model's prompt
VOCAB = 512     # vocabulary that replaces the case's own
EXPERTS = 2     # experts of a layer for each expert that a token chooses
MARGIN = 0.01   # clearance of expert routing in standard deviations, so that rounding flips no choice

class Errors(NamedTuple):
  """
  The largest error of each token's logits, in standard deviations of the float64 reference's logits.

  `prompt`: after a prompt's last token. `steps`: after each decode step. `launched`: kernel names of prompt and steps.
  """
  prompt: float
  steps: list[float]
  launched: list[list[str]]

def model_of(case: str) -> dict[str, Any]:
  """A case of the kernel suite with its full widths, but a smaller vocabulary and fewer experts."""
  of = CASES[case] | {"vocab": VOCAB}
  if (moe := of.get("moe")) is None: return of
  return of | {"moe": dataclasses.replace(moe, experts=EXPERTS * moe.used)}

def narrow(case: str) -> dict[str, Any]:
  """A case of the kernel suite with its full vocabulary and all experts, but small widths."""
  of = {"dim": 256, "ffn": 512, "heads": 4, "head_dim": 64}
  of = CASES[case] | ({"dim": 256, "ffn": 512, "heads": 4} if CASES[case].get("mla") else of)
  if "kv_heads" in of: of["kv_heads"] = 2
  return of | ({"moe": dataclasses.replace(of["moe"], ffn=256)} if "moe" in of else {})

def of_case(case: str, prompt: int, steps: int, wide: bool = True) -> Errors:
  """The errors of a case's model over a prompt of `prompt` tokens and decode steps."""
  return of_model((model_of if wide else narrow)(case) | {"blocks": True}, prompt, steps, MAX_CONTEXT, CHUNK)

def of_architecture(name: str) -> Errors:
  """The errors of a small float32 model of model_cases.MODELS."""
  length, chunk, context = sizes(name)
  return of_model(MODELS[name] | {"vocab": MODEL_VOCAB}, min(length, 150) - AFTER, AFTER, context, chunk)

def of_model(model: dict[str, Any], prompt: int, steps: int, context: int, chunk: int) -> Errors:
  """The errors of a synthetic model. model: arguments of synthetic.write_model."""
  with tempfile.TemporaryDirectory() as folder:
    path = write_model(pathlib.Path(folder, "model.gguf"), **model)
    reference = Reference(path)
    ids = np.random.default_rng(3).integers(0, model["vocab"], prompt + steps).tolist()
    exact = reference.logits(ids := clear_choices(reference, ids, MARGIN))
    del reference
    llm = tinygrad_llm.load(str(path), max_context=context, chunk=chunk, progress=False)
  def error(found: np.ndarray, position: int) -> float:
    return float(np.abs(found - exact[position]).max() / exact.std())
  launched = Device["METAL"].launched
  launched.clear()
  of_prompt = error(llm.prefill(ids[:prompt]), prompt - 1)
  names = [sorted({*launched})]
  launched.clear()
  of_steps = [error(llm.step(ids[i], i), i) for i in range(prompt, prompt + steps)]
  return Errors(of_prompt, of_steps, [*names, sorted({*launched})])

def answers(prompt: int, tokens: int) -> list[list[int]]:
  """The bundled model's greedy answer and its sampled answer to a random prompt of `prompt` tokens, on any device."""
  ids = np.random.default_rng(2).integers(3, 300, prompt).tolist()
  with tinygrad_llm.load(max_context=256) as llm:
    return [list(llm.generate(ids, max_tokens=tokens, ignore_eos=True, seed=7, **how))
            for how in ({}, {"temperature": 0.8, "top_k": 40, "repeat_penalty": 1.1})]

# *** single kernels, on this device

def products(cases: list[list]) -> list[float]:
  """gpu_numbers.errors of (type, rows, n) each."""
  return gpu_numbers.errors([(*case, None) for case in cases])

def products_of_experts(cases: list[list]) -> list[float]:
  """gpu_numbers.errors_of_experts."""
  return gpu_numbers.errors_of_experts([tuple(case) for case in cases])

def of_prompts(cases: list[list]) -> list[float]:
  """Errors of prefill GEMMs, a gpu_matmuls.Case each."""
  return [_error(*gpu_matmuls.product(case := Case(*row))[:2], case) for row in cases]

def attentions(cases: list[dict]) -> list[float]:
  """Errors of attention, an attention.Case each."""
  given = [attention.Case(**case) for case in cases]
  return [attention.error(attention.values(attention.Problem(case).tensor(), case), case) for case in given]

def _error(y: Tensor, wanted: np.ndarray, case: Case) -> float:
  return _distance(y.realize().uop.base.buffer.numpy(), wanted, case)

def _distance(found: np.ndarray, wanted: np.ndarray, case: Case) -> float:
  """Largest error as a fraction of the root mean square. found: the whole buffer, with padding tokens."""
  kept = found.reshape(*wanted.shape[:-2], -1, wanted.shape[-1])[..., :case.tokens, :]
  return float(np.abs(kept - wanted).max() / np.sqrt((wanted ** 2).mean()))

# *** faults

class Planted(NamedTuple):
  """fault: the reported one of msl.kernel.FAULTS, or ""; error: of the results, if no fault was reported."""
  fault: str
  error: float

def planted(case: list, changes: list[list[str]]) -> list[Planted]:
  """Runs a product's kernel with each change of its source: (pattern, index of the match, replacement)."""
  y, wanted = gpu_matmuls.product(given := Case(*case))
  y.realize()
  command = Device["METAL"].mtl_buffers_in_flight[-1]
  Device["METAL"].synchronize()
  memory, found = command.arguments[0].bytes(), list[Planted]()
  for pattern, place, text in [["kernel", 0, "kernel"], *changes]:
    matches = [*re.finditer(pattern, source := command.kernel.source)]
    at = matches[int(place)]
    changed = Kernel(source[:at.start()] + at.expand(text) + source[at.end():], strict=False)
    memory[:] = b"\xff" * len(memory)
    fault, error = "", float("nan")
    try: changed(command.arguments, command.grid, command.block)
    except Fault as e: fault = e.kind
    else: error = _distance(np.frombuffer(memory, np.float32), wanted, given)
    found.append(Planted(fault, error))
  return found
