"""
Metal's kernels executed by the processor, in a process of its own whose device METAL is that of tests/support/msl:

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
AFTER = 4       # steps after a small model's prompt
VOCAB = 512     # of a case's model, in place of its own
EXPERTS = 2     # of a layer, for each that a token chooses
MARGIN = 0.01   # standard deviations by which the choice of experts is clear, so that rounding flips none

class Errors(NamedTuple):
  """
  Of logits, the largest of each token's, in standard deviations of the float64 reference's. prompt: after the last
  token of a prompt; steps: of each decode step after it; launched: the names of kernels, prompt's and steps'.
  """
  prompt: float
  steps: list[float]
  launched: list[list[str]]

def model_of(case: str) -> dict[str, Any]:
  """A case of the kernel suite with all its widths, but fewer words and experts."""
  of = CASES[case] | {"vocab": VOCAB}
  if (moe := of.get("moe")) is None: return of
  return of | {"moe": dataclasses.replace(moe, experts=EXPERTS * moe.used)}

def narrow(case: str) -> dict[str, Any]:
  """The other way round: all words and experts, but small widths."""
  of = {"dim": 256, "ffn": 512, "heads": 4, "head_dim": 64}
  of = CASES[case] | ({"dim": 256, "ffn": 512, "heads": 4} if CASES[case].get("mla") else of)
  if "kv_heads" in of: of["kv_heads"] = 2
  return of | ({"moe": dataclasses.replace(of["moe"], ffn=256)} if "moe" in of else {})

def of_case(case: str, prompt: int, steps: int, wide: bool = True) -> Errors:
  """Of a case's model: a prompt of so many tokens, and decode steps."""
  return of_model((model_of if wide else narrow)(case) | {"blocks": True}, prompt, steps, MAX_CONTEXT, CHUNK)

def of_architecture(name: str) -> Errors:
  """Of a small model of float32 weights: model_cases.MODELS."""
  length, chunk, context = sizes(name)
  return of_model(MODELS[name] | {"vocab": MODEL_VOCAB}, min(length, 150) - AFTER, AFTER, context, chunk)

def of_model(model: dict[str, Any], prompt: int, steps: int, context: int, chunk: int) -> Errors:
  """model: arguments of synthetic.write_model."""
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
  """The bundled model's ids after a prompt of so many: the best ones, then drawn ones; whatever the device is."""
  ids = np.random.default_rng(2).integers(3, 300, prompt).tolist()
  with tinygrad_llm.load(max_context=256) as llm:
    return [list(llm.generate(ids, max_tokens=tokens, ignore_eos=True, seed=7, **how))
            for how in ({}, {"temperature": 0.8, "top_k": 40, "repeat_penalty": 1.1})]

# *** single kernels, on this device

def products(cases: list[list]) -> list[float]:
  """gpu_numbers.errors: (type, rows, n) each."""
  return gpu_numbers.errors([(*case, None) for case in cases])

def products_of_experts(cases: list[list]) -> list[float]:
  """gpu_numbers.errors_of_experts."""
  return gpu_numbers.errors_of_experts([tuple(case) for case in cases])

def of_prompts(cases: list[list]) -> list[float]:
  """Errors of products of several tokens, gpu_matmuls.Case each."""
  return [_error(*gpu_matmuls.product(case := Case(*row))[:2], case) for row in cases]

def attentions(cases: list[dict]) -> list[float]:
  """Errors of attention of few queries, attention.Case each."""
  given = [attention.Case(**case) for case in cases]
  return [attention.error(attention.values(attention.Problem(case).tensor(), case), case) for case in given]

def _error(y: Tensor, wanted: np.ndarray, case: Case) -> float:
  return _distance(y.realize().uop.base.buffer.numpy(), wanted, case)

def _distance(found: np.ndarray, wanted: np.ndarray, case: Case) -> float:
  """The largest, as a fraction of the root mean square. found: all that is in memory, tokens that are none, too."""
  kept = found.reshape(*wanted.shape[:-2], -1, wanted.shape[-1])[..., :case.tokens, :]
  return float(np.abs(kept - wanted).max() / np.sqrt((wanted ** 2).mean()))

# *** faults

class Planted(NamedTuple):
  """fault: what was found, of msl.kernel.FAULTS; error: of the numbers, if nothing was."""
  fault: str
  error: float

def planted(case: list, changes: list[list[str]]) -> list[Planted]:
  """What is found of a product's kernel with each change of its source: a pattern, which of its matches, and text."""
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
