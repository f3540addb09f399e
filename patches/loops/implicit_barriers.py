"""
Barrier search only where threads share memory: kernels of CPUs are lowered without it.

Why: at the end of each loop tinygrad searches the loop's body for stores to shared memory and loads from it. The search
  is a thirtieth of the lowering of CPU kernels, which have no shared memory.
How: tinygrad's rule is asked only for kernels of devices that have local memory.
Rewrite:
  END(body, loop) of a CPU's kernel
  --> itself, without a search
Numbers: share of the samples of a profile, lowering SmolLM2 135M, a prompt and a decode step: 3.1% (2-core AMD EPYC)
Upstream: could be sent as it is.
"""
from __future__ import annotations
from tinygrad import codegen
from tinygrad.uop.ops import PatternMatcher, UOp
from tinygrad_llm.patches import hooks, places

SEAMS = {
  "tinygrad.codegen:add_war_barrier": "be251f199831",
  "tinygrad.codegen:pm_implicit_barriers": "3ed2b0d8660e",
}

_add_war_barrier = codegen.add_war_barrier

def add_war_barrier(end: UOp) -> UOp|None: return _add_war_barrier(end) if hooks.shares_memory() else None

def install() -> None:
  rules = [(p, add_war_barrier if f is _add_war_barrier else f) for p, f in codegen.pm_implicit_barriers.patterns]
  places.replace(codegen, "pm_implicit_barriers", PatternMatcher(rules))
  places.stock[add_war_barrier] = _add_war_barrier
