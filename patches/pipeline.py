"""
The pipeline: every pass in order of installation, what it needs and provides, and which passes it must come after.

A pass is a module of this package (see __init__.py). It is on if the environment does not switch it off and all that it
needs is on. check() validates the table; `python -m tinygrad_llm.patches` prints it.
"""
from __future__ import annotations
import difflib, os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

class Phase(Enum):
  """When a pass works, in the order in which a kernel meets the phases; the last four rewrite no kernel."""
  GRAPH = "tensors become kernels"
  LAUNCH = "small kernels are joined"
  CHOOSE = "a kernel's loops are chosen"
  LOOPS = "a scheduled kernel's loops and sums are rewritten"
  VECTORS = "loops become vectors, loads are ordered"
  RENDER = "source code is written and compiled"
  SEARCH = "schedules are searched and reused"
  LOWERING = "compiling takes less time"
  CACHE = "what was compiled is kept"
  RUNTIME = "kernels are launched, memory is held"

class Status(Enum):
  """UNMEASURED: the hardware to time the pass was not at hand."""
  MEASURED = "measured"
  UNMEASURED = "not timed on its hardware"

@dataclass(frozen=True)
class Pass:
  """
  A row of the table. needs: passes, or things that they provide, without which the pass does nothing and is off. after:
  passes that must come earlier. targets: "all", or the devices whose kernels it may change.
  """
  name: str
  room: str
  phase: Phase
  targets: str = "all"
  needs: tuple[str, ...] = ()
  provides: tuple[str, ...] = ()
  after: tuple[str, ...] = ()
  status: Status = Status.MEASURED

  def suits(self, on_cpu: bool) -> bool:
    """Whether it may change kernels of CPUs (on_cpu), or of GPUs."""
    return self.targets == "all" or self.targets.startswith("cpu") == on_cpu

  @property
  def module(self) -> str: return f"{self.room}.{self.name}" if self.room else self.name

def _pass(module: str, phase: Phase, targets: str = "all", needs: str = "", provides: str = "", after: str = "",
          status: Status = Status.MEASURED) -> Pass:
  room, _, name = module.rpartition(".")
  return Pass(name, room, phase, targets, tuple(needs.split()), tuple(provides.split()), tuple(after.split()), status)

GRAPH, LAUNCH, CHOOSE, LOOPS, VECTORS, RENDER, SEARCH, LOWERING, CACHE, RUNTIME = Phase
CPU, GPU, NVIDIA, NEW = "cpu", "gpu", "cuda nv", Status.UNMEASURED

PASSES: tuple[Pass, ...] = (
  _pass("compile_time.interning", LOWERING),
  _pass("compile_time.toposort", LOWERING),
  _pass("compile_time.graph_rewrite", LOWERING),
  _pass("compile_time.match_code", LOWERING),
  _pass("compile_time.kernel_calls", LOWERING),
  _pass("compile_time.implicit_inputs", LOWERING),
  _pass("loops.implicit_barriers", LOWERING, CPU),
  _pass("compile_time.type_inference", LOWERING),
  _pass("compile_time.scalarize", LOWERING),
  _pass("compile_time.tuple_order", LOWERING),
  _pass("compile_time.merge_loops", LOWERING),
  _pass("loops.symbolic_bounds", LOWERING, after="merge_loops"),
  _pass("compile_time.clang_passes", LOWERING, CPU),
  _pass("compile_time.workers", RUNTIME),
  _pass("runtime.estimates", RUNTIME),
  _pass("cache.sqlite_cache", CACHE),
  _pass("cache.programs", CACHE, provides="programs_elsewhere"),
  _pass("compile_time.forked_lowering", LOWERING, needs="programs_elsewhere", after="programs"),
  _pass("runtime.buffer_parts", LOWERING, after="programs"),
  _pass("host.threads", RUNTIME, CPU),
  _pass("runtime.dispatch", RUNTIME, CPU, provides="cpu_graphs"),
  _pass("runtime.graph_batches", RUNTIME),
  _pass("runtime.launch_sizes", RUNTIME, GPU),
  _pass("runtime.contiguous_views", RUNTIME),
  _pass("runtime.graph_dependencies", RUNTIME, "cuda"),
  _pass("host.huge_pages", RUNTIME, CPU),
  _pass("host.pinned_copies", RUNTIME, "cuda"),
  _pass("runtime.lost_devices", RUNTIME, GPU, status=NEW),
  _pass("hooks", LOOPS),
  _pass("graph.reshapes", GRAPH),
  _pass("graph.gathers", GRAPH, provides="indirect_loads"),
  _pass("graph.clamps", GRAPH, after="gathers"),
  _pass("graph.merge_sums", GRAPH, after="gathers clamps"),
  _pass("graph.split_products", GRAPH, after="merge_sums"),
  _pass("graph.join_products", GRAPH, after="split_products"),
  _pass("graph.norm_fusion", GRAPH, GPU, needs="hooks"),
  _pass("attention.flash_decoding", GRAPH, needs="kv_kernels", provides="kv_parts", after="norm_fusion"),
  _pass("graph.store_factors", GRAPH, after="flash_decoding"),
  _pass("loops.merge_fields", LOOPS, GPU, needs="hooks", provides="merged_fields"),
  _pass("tiles.mma_tiles", LOOPS, GPU, needs="hooks gemv", after="merge_fields"),
  _pass("tiles.amx_tiles", LOOPS, "cpu with AMX", needs="vector_rows", status=NEW),
  _pass("loops.hoist_sums", LOOPS, needs="hooks", after="mma_tiles amx_tiles"),
  _pass("loops.hoist_factors", LOOPS, needs="hooks", after="hoist_sums"),
  _pass("vector.vectorizer", VECTORS, CPU, needs="hooks", provides="vector_rules"),
  _pass("isa.table_lookup", VECTORS, CPU, needs="vector_rules", after="vectorizer"),
  _pass("vector.narrow", VECTORS, CPU, needs="vector_rules", after="vectorizer table_lookup"),
  _pass("vector.lanes", LOOPS, CPU, needs="hooks vector_rules gemv", provides="vector_rows", after="hoist_factors"),
  _pass("tiles.pack_operands", LOOPS, CPU, needs="dots_of_bytes", after="lanes"),
  _pass("tiles.shared_operands", LOOPS, GPU, needs="hooks", after="merge_fields"),
  _pass("loops.factor_sums", LOOPS, needs="hooks", provides="nested_sums",
        after="lanes pack_operands shared_operands"),
  _pass("isa.dot_int8_gpu", LOOPS, NVIDIA, needs="nested_sums merged_fields gemv", after="factor_sums"),
  _pass("isa.int_to_float", LOOPS, GPU, needs="hooks", after="factor_sums dot_int8_gpu"),
  _pass("isa.table_lookup_gpu", VECTORS, NVIDIA, needs="int_to_float"),
  _pass("isa.fields_in_place", VECTORS, GPU, needs="int_to_float", after="table_lookup_gpu"),
  _pass("isa.dot_int8_cpu", LOOPS, CPU, needs="nested_sums vector_rows", provides="dots_of_bytes",
        after="factor_sums narrow"),
  _pass("isa.dot_bf16", VECTORS, CPU, needs="vector_rows", after="dot_int8_cpu"),
  _pass("loops.hoist_scales", LOOPS, CPU, needs="hooks", after="dot_int8_cpu"),
  _pass("schedule.choose", CHOOSE, needs="hooks", provides="choosers"),
  _pass("schedule.gemv", CHOOSE, needs="choosers"),
  _pass("vector.reroll", LOOPS, CPU, needs="hooks vector_rules", after="hoist_scales"),
  _pass("schedule.elementwise", CHOOSE, needs="hooks choosers", after="gemv reroll"),
  _pass("schedule.reductions", CHOOSE, GPU, needs="choosers", after="elementwise"),
  _pass("schedule.block_reductions", CHOOSE, GPU, needs="hooks choosers", after="reductions"),
  _pass("graph.kernel_chains", LAUNCH, needs="hooks choosers", provides="stages", after="block_reductions"),
  _pass("graph.horizontal_fusion", LAUNCH, CPU, after="kernel_chains"),
  _pass("compile_time.normal_form", LAUNCH, CPU, after="horizontal_fusion"),
  _pass("attention.online_softmax", CHOOSE, needs="kv_parts", provides="kv_kernels",
        after="horizontal_fusion flash_decoding"),
  _pass("search.stored_schedules", SEARCH, provides="known_schedules", after="online_softmax"),
  _pass("search.beam_search", SEARCH, needs="known_schedules", after="stored_schedules"),
  _pass("schedule.register_tiles", CHOOSE, CPU, needs="hooks"),
  _pass("tiles.epilogues", LOOPS, CPU, needs="hooks", after="elementwise hoist_scales"),
  _pass("loops.skip_steps", LOOPS, needs="hooks", after="epilogues"),
  _pass("vector.ordered_loads", VECTORS, CPU, needs="hooks", after="vectorizer dot_int8_gpu"),
  _pass("vector.clang_combine", RENDER, CPU),
  _pass("vector.clang_width", RENDER, CPU),
  _pass("isa.shuffle_reduce", LOOPS, GPU, needs="hooks", after="skip_steps"),
  _pass("isa.half8_loads", RENDER, "metal cuda nv", needs="hooks"),
  _pass("isa.reciprocal", RENDER, NVIDIA),
  _pass("isa.ptx", RENDER, NVIDIA, status=NEW),
  _pass("isa.launch_bounds", RENDER, NVIDIA),
  _pass("cache.captures", CACHE, after="programs"),
  _pass("compile_time.trace_cache", LOWERING),
  _pass("compile_time.gc_pause", LOWERING, after="trace_cache beam_search"),
  _pass("host.thread_safety", RUNTIME, needs="interning", after="gc_pause captures"),
)
# switches that are no passes: NO_<NAME>=1 switches these off, too
SWITCHES = {"patches": "all of them", "q8_activations": "int8 activations, in the app"}
CLOSE = 0.75  # difflib's similarity from which a name counts as a typo; below it, the variable is another program's

BY_NAME = {p.name: p for p in PASSES}

def is_set(switch: str, environment: Mapping[str, str] = os.environ) -> bool:
  return environment.get(switch, "0") not in ("", "0")

_providers = {need: [p for p in PASSES if p.name == need or need in p.provides] for q in PASSES for need in q.needs}

def why_off(name: str, environment: Mapping[str, str] = os.environ) -> str:
  """
  Why a pass is off: "VARIABLE=value" of the environment, or "needs X" if no X is on; "" if the pass is on. KeyError for
  a name that is neither a pass nor a switch.
  """
  return _why_off(name, environment, ())

def _why_off(name: str, environment: Mapping[str, str], asked: tuple[str, ...]) -> str:
  if name not in BY_NAME and name not in SWITCHES:
    raise KeyError(f"{name}: no such pass; close: {', '.join(_close(name)) or 'none'}")
  for switch in ("NO_PATCHES", f"NO_{name.upper()}"):
    if is_set(switch, environment): return f"{switch}={environment[switch]}"
  for need in BY_NAME[name].needs if name in BY_NAME else ():
    if not any(p.name in asked or not _why_off(p.name, environment, (*asked, name)) for p in _providers[need]):
      return f"needs {' or '.join(p.name for p in _providers[need])}"
  return ""

def _close(name: str) -> list[str]: return difflib.get_close_matches(name, [*BY_NAME, *SWITCHES], n=3, cutoff=CLOSE)

def wrong_switch(environment: Mapping[str, str] = os.environ) -> str:
  """A message about a variable NO_<NAME> that looks like a misspelt switch; "" if there is none."""
  for variable in sorted(v for v in environment if v.startswith("NO_") and is_set(v, environment)):
    name = variable.removeprefix("NO_").lower()
    if name not in BY_NAME and name not in SWITCHES and (close := _close(name)):
      return f"{variable}: no such switch; did you mean {' or '.join(f'NO_{x.upper()}' for x in close)}?"
  return ""

def check(passes: tuple[Pass, ...] = PASSES) -> list[str]:
  """The faults of a table, one a line: names that occur twice, needs that nobody provides, broken orders."""
  return list(_wrong(passes))

def _wrong(passes: tuple[Pass, ...]) -> Iterator[str]:
  at = {p.name: i for i, p in enumerate(passes)}
  provided = {x for p in passes for x in p.provides}
  if len(at) != len(passes): yield "a name is there twice"
  for clash in sorted(provided & at.keys()): yield f"{clash}: a pass, and what one provides"
  for i, p in enumerate(passes):
    for need in p.needs:
      if need not in at and need not in provided: yield f"{p.name}: needs {need}, which nobody provides"
      if need in p.provides: yield f"{p.name}: needs what it provides"
    for other in p.after:
      if other not in at: yield f"{p.name}: comes after {other}, which there is not"
      elif at[other] >= i: yield f"{p.name}: comes before {other}"
