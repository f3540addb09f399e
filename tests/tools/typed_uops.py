"""
A mypy plugin that gives return types to functions of tinygrad without annotations.

Without it their graphs are Any, and mypy checks nothing that is done with them.
"""
from collections.abc import Callable

from mypy.nodes import TypeInfo
from mypy.plugin import FunctionContext, MethodContext, Plugin
from mypy.types import AnyType, Instance, Type

UOP = "tinygrad.uop.ops.UOp"
METHODS = ("after", "alu", "bind", "call", "cconst", "const", "const_like", "end", "index", "load", "new_buffer",
           "placeholder", "range", "reduce", "sink", "store", "substitute", "variable", "wmma")
RETURNED = {f"{UOP}.{name}": UOP for name in METHODS} | {
  "tinygrad.helpers.ceildiv": "builtins.int", "tinygrad.helpers.ansistrip": "builtins.str"}

class TypedUOps(Plugin):
  def _typed(self, fullname: str) -> Callable[[MethodContext | FunctionContext], Type] | None:
    if (name := RETURNED.get(fullname)) is None: return None
    def returned(ctx: MethodContext | FunctionContext) -> Type:
      found = self.lookup_fully_qualified(name)
      if not isinstance(ctx.default_return_type, AnyType) or found is None or not isinstance(found.node, TypeInfo):
        return ctx.default_return_type
      return Instance(found.node, [])
    return returned

  def get_method_hook(self, fullname: str) -> Callable[[MethodContext], Type] | None: return self._typed(fullname)
  def get_function_hook(self, fullname: str) -> Callable[[FunctionContext], Type] | None: return self._typed(fullname)

def plugin(version: str) -> type[Plugin]: return TypedUOps
