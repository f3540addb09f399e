"""
CPU graphs: a captured step is launched in batches by native code, not kernel by kernel from Python.

Why: the CPU device has no graphs, so a TinyJit launches its kernels one by one in Python.
How: CPUGraph is tinygrad's GraphRunner for the CPU. A batch of kernels is a table of commands (thread_pool.py), written
  once. A replay writes the addresses of its inputs and the values of its variables into the table and runs it with one
  call. All threads of the pool are woken once, at the start of the table. As with other devices' graphs, DEBUG=2 shows
  a batch as one line and JIT=2 makes none. HCQ2=1 has batches of its own.
Numbers: 200 kernels of 16 additions each, for each of them: 16.8 -> 0.33 us, the kernel's own time included (HCQ2=1:
  0.63; Zen 4, medians of 60)
Upstream: not sent; there, its CPU device could have this graph runner: one native call for a batch.
"""
from __future__ import annotations
import ctypes
from collections import defaultdict
from collections.abc import Sequence
from struct import Struct
from typing import cast
from tinygrad.device import Buffer, Compiled
from tinygrad.engine.jit import GraphRunner
from tinygrad.engine.realize import _resolve, get_call_arg_uops
from tinygrad.helpers import all_int
from tinygrad.runtime.ops_cpu import CPUDevice, CPUProgram
from tinygrad.uop.ops import Ops, UOp
from tinygrad_llm.patches import places
from tinygrad_llm.patches.host import thread_pool

SEAMS = thread_pool.SEAMS | {
  "tinygrad.engine.jit:GraphRunner": "22848ebda068",
  "tinygrad.engine.jit:graph_split_rewrite": "395468932786",
  "tinygrad.engine.realize:_resolve": "9abe219c0df3",
  "tinygrad.engine.realize:exec_kernel": "5a15342ffb27",
  "tinygrad.engine.realize:get_graph_runtime": "876e20ebc5d3",
  "tinygrad.runtime.ops_cpu:CPUDevice.__init__": "de5a97aedb0a",
}

class CPUGraph(GraphRunner):
  """
  A batch of kernels as a table.

  - inputs: the words of the table that take a replay's addresses
  - values: the variables' values, in the order of `names`; the table writes them into its words
  """
  def __init__(self, linear: UOp, input_uops: tuple[UOp, ...] = ()):
    super().__init__(linear, input_uops)
    self.name = self.calls[0][2][0].device
    launches = []
    for (_, ast, bufs, device_vars), program in zip(self.calls, self.runtimes):
      addresses = [bufs[i].get_buf(self.name).va_addr for i in ast.arg.globals]
      values = [device_vars.get(v.expr, 0) for v in ast.arg.vars]
      launches.append(thread_pool.command(cast(CPUProgram, program), ast.arg.global_size[0], [*addresses, *values]))
    self.table = thread_pool.Table(launches)
    self.inputs: dict[int, list[tuple[int, int]]] = defaultdict(list)  # slot -> [(word, bytes into the input)]
    for at, call in zip(self.table.at, self.linear.src):
      args = get_call_arg_uops(call)
      for word, i in enumerate(call.src[0].arg.globals, at + thread_pool.HEAD):
        for slot in {u.arg.slot for u in args[i].toposort() if u.op is Ops.PARAM}:
          start = self._address(_resolve(args[i], input_uops)) - self._address(input_uops[slot])
          self.inputs[slot].append((word, start))
    variables: dict[str, list[int]] = {name: [] for name in self.vars}
    for j, replaced in self.var_vals_replace.items():
      first = self.table.at[j] + thread_pool.HEAD + len(self.calls[j][1].arg.globals)
      for i, variable in replaced: variables[self.vars[variable]].append(first + i)
    self.names, self.values = [*variables], self.table.bind([*variables.values()])
    self._pack = Struct(f"={len(variables)}q").pack_into

  def __call__(self, input_uops: tuple[UOp, ...], var_vals: dict[str, int], wait: bool = False) -> float | None:
    seconds = self.run(input_uops, [var_vals[name] for name in self.names])
    return seconds if wait else None

  def run(self, input_uops: tuple[UOp, ...], values: Sequence[int]) -> float:
    """The same for the values of `names`; returns the seconds that it took."""
    self._pack(self.values, 0, *values)
    if self.inputs: self._write_addresses(input_uops)
    return thread_pool.pool().run(self.table)

  def run_stamped(self, input_uops: tuple[UOp, ...], var_vals: dict[str, int]) -> ctypes.Array[ctypes.c_uint64]:
    """The same; returns when each kernel began and ended, as thread_pool.Pool.run_stamped does."""
    self._pack(self.values, 0, *[var_vals[name] for name in self.names])
    self._write_addresses(input_uops)
    return thread_pool.pool().run_stamped(self.table)

  def _write_addresses(self, input_uops: tuple[UOp, ...]) -> None:
    words = self.table.words
    for slot, offsets in self.inputs.items():
      address = self._address(input_uops[slot])
      for word, start in offsets: words[word] = address + start

  def _address(self, u: UOp) -> int:
    address: int = cast(Buffer, u.buffer).ensure_allocated().get_buf(self.name).va_addr
    return address

  @staticmethod
  def supports_uop(batch_devs: list[Compiled], new_call: UOp) -> bool:
    if not GraphRunner.supports_uop(batch_devs, new_call) or (info := new_call.src[0].arg).target.renderer == "LVP":
      return False
    return all_int(info.global_size) and (info.global_size[0] == 1 or "core_id" in info.runtimevars)

_init = CPUDevice.__init__

def init(self: CPUDevice, device: str = "") -> None:
  _init(self, device)
  self.graph = CPUGraph

def install() -> None: places.replace(CPUDevice, "__init__", init)
