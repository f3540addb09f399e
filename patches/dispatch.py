"""
A replayed TinyJit step is one call into native code.

Why: the CPU device has no graph; a replayed step is a loop in Python, 14.6 us a kernel.
How: a GraphRunner writes the step as a table of commands once; a replay patches variables and inputs in it and calls
  native code that runs it, with all threads.
Numbers: not measured alone yet.
Upstream: not sent.
"""
from __future__ import annotations
from collections import defaultdict
from tinygrad.device import Compiled
from tinygrad.engine.jit import GraphRunner
from tinygrad.engine.realize import _resolve, get_call_arg_uops
from tinygrad.helpers import all_int
from tinygrad.runtime.ops_cpu import CPUDevice
from tinygrad.uop.ops import Ops, UOp
from tinygrad_llm.patches.commands import HEAD, Table, command, pool

SEAMS = {
  "tinygrad.runtime.ops_cpu:CPUDevice.__init__": "de5a97aedb0a",
  "tinygrad.runtime.ops_cpu:CPUProgram.__init__": "bb170a876987",
  "tinygrad.runtime.ops_cpu:CPUProgram.__call__": "ebbeb3d86da2",
  "tinygrad.engine.jit:GraphRunner": "22848ebda068",
  "tinygrad.engine.jit:graph_split_rewrite": "395468932786",
  "tinygrad.engine.realize:get_graph_runtime": "876e20ebc5d3",
  "tinygrad.engine.realize:exec_kernel": "5a15342ffb27",
  "tinygrad.engine.realize:_resolve": "9abe219c0df3",
}

class CPUGraph(GraphRunner):
  """A batch of kernels as a table of commands, with places for the addresses of inputs and the values of variables."""
  def __init__(self, linear: UOp, input_uops: tuple[UOp, ...] = ()):
    super().__init__(linear, input_uops)
    self.name = self.calls[0][2][0].device
    commands = []
    for (_, ast, bufs, device_vars), runtime in zip(self.calls, self.runtimes):
      values = [device_vars.get(v.expr, 0) for v in ast.arg.vars]
      commands.append(command(runtime, ast.arg.global_size[0],
                              [*(bufs[i].get_buf(self.name).va_addr for i in ast.arg.globals), *values]))
    self.table = Table(commands)
    places: dict[int, list[tuple[int, int]]] = defaultdict(list)  # input -> where in the table, bytes into the input
    for at, call in zip(self.table.at, self.linear.src):
      args = get_call_arg_uops(call)
      for i, global_ in enumerate(call.src[0].arg.globals):
        if not (inputs := [u.arg.slot for u in args[global_].toposort() if u.op is Ops.PARAM]): continue
        offset = self._address(_resolve(args[global_], input_uops)) - self._address(input_uops[inputs[0]])
        places[inputs[0]].append((at + HEAD + i, offset))
    self.inputs = list(places.items())
    self.variables: list[tuple[str, list[int]]] = [(name, []) for name in self.vars]
    for j, replace in self.var_vals_replace.items():
      first = self.table.at[j] + HEAD + len(self.calls[j][1].arg.globals)
      for i, variable in replace: self.variables[variable][1].append(first + i)

  def __call__(self, input_uops: tuple[UOp, ...], var_vals: dict[str, int], wait: bool = False) -> float | None:
    words = self.table.words
    for slot, places in self.inputs:
      address = self._address(input_uops[slot])
      for at, offset in places: words[at] = address + offset
    for name, ats in self.variables:
      value = var_vals[name]
      for at in ats: words[at] = value
    seconds = pool().run(self.table)
    return seconds if wait else None

  def _address(self, buffer: UOp) -> int:
    return buffer.buffer.ensure_allocated().get_buf(self.name).va_addr  # type: ignore[union-attr]

  @staticmethod
  def supports_uop(batch_devs: list[Compiled], new_call: UOp) -> bool:
    if not GraphRunner.supports_uop(batch_devs, new_call): return False
    info = new_call.src[0].arg
    if info.target.renderer == "LVP" or not all_int(info.global_size): return False
    return info.global_size[0] == 1 or bool(info.runtimevars)

_init = CPUDevice.__init__

def init(self: CPUDevice, device: str = "") -> None:
  _init(self, device)
  self.graph = CPUGraph

def install() -> None: CPUDevice.__init__ = init  # type: ignore[method-assign]
