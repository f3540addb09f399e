"""
Match code: one walk over a rule's pattern writes the Python function that matches it.

Why: each process writes a Python function for each of some 400 patterns that it meets, 1.5 ms a pattern. For each,
  tinygrad makes a graph of conditions, rewrites it twice, and searches all names of a module for the rule's. A first
  start has five such processes.
How: one walk collects conditions, names and choices. Each combination of choices becomes a case of its own. A node's
  sources are looked up once. Rules are found by a node's operation, so the function does not test it again. Patterns
  that this does not cover are left to tinygrad: names below a repeated pattern, and many choices.
Numbers: seconds for the 408 patterns of a prompt and a decode step, one process: 0.55 -> 0.13 (2-core AMD EPYC)
Upstream: could be sent as it is.
"""
from __future__ import annotations
import functools, itertools, types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from tinygrad.uop import upat
from tinygrad.uop.ops import UPat
from tinygrad_llm.patches import places

SEAMS = {
  "tinygrad.uop.upat:upat_compile": "7845bb7147ef",
  "tinygrad.uop.upat:_get_clause": "df4f72ece4b1",
  "tinygrad.uop.ops:upat_deferred_compile": "1416a46c880c",
  "tinygrad.uop.ops:deconstruct_function": "04db1b8347b0",
}

MOST = 16  # most cases: combinations of all choices

class Unknown(Exception): pass

@dataclass
class Case:
  """Conditions in their order, the rule's names for nodes, and choices between further cases."""
  tests: list[str] = field(default_factory=list)
  names: list[tuple[str, str]] = field(default_factory=list)
  choices: list[list[Case]] = field(default_factory=list)

class Writer:
  """Writes the Python function of one pattern. values: {name: value} that the function uses besides nodes."""
  def __init__(self, pattern: UPat):
    self.values, self.nodes = dict[str, Any](), itertools.count()
    self.case = self._case(pattern, "uop", True)

  def _value(self, x: Any) -> str:
    self.values[name := f"value{len(self.values)}"] = x
    return name

  def _equal(self, what: str, known: tuple[Any, ...]) -> str:
    return f"{what} == {self._value(known[0])}" if len(known) == 1 else f"{what} in {self._value(known)}"

  def _case(self, pattern: UPat, node: str, found: bool = False) -> Case:
    """The conditions on a node. found: its operation is known to be the pattern's."""
    case = Case()
    self._add(case, pattern, node, found)
    return case

  def _add(self, case: Case, pattern: UPat, node: str, found: bool = False) -> None:
    if pattern.is_any:
      case.choices.append([self._case(x, node) for x in pattern.src[0]])
      return
    here = list[str]()
    if pattern.op is not None and not found:
      here.append(f"{{}}.op is {self._value(pattern.op[0])}" if len(pattern.op) == 1 else
                  f"{{}}.op in {self._value(frozenset(pattern.op))}")
    if pattern.arg is not None: here.append(self._equal("{}.arg", (pattern.arg,)))
    if pattern.strict_length: here.append(f"len({{}}.src) == {pattern.required_len}")
    elif pattern.required_len: here.append(f"len({{}}.src) >= {pattern.required_len}")
    if pattern.match_dtype is not None: here.append(self._equal("{}.dtype", pattern.match_dtype))
    if pattern.match_tag is not None: here.append(self._equal("{}.tag", pattern.match_tag))
    if here and not node.isidentifier():  # the first test looks the node up, for all others
      looked_up, node = node, f"node{next(self.nodes)}"
      here[0] = here[0].replace("{}", f"({node}:={looked_up})")
    case.tests += [test.replace("{}", node) for test in here]
    if pattern.name is not None: case.names.append((pattern.name, node))
    self._sources(case, pattern, node)

  def _sources(self, case: Case, pattern: UPat, node: str) -> None:
    if pattern.src is None: return
    if len(pattern.src) == 1 and isinstance(pattern.src[0], itertools.repeat):
      each = self._case(next(pattern.src[0]), "it")
      if each.names or each.choices: raise Unknown
      if each.tests: case.tests.append(f"all([{' and '.join(each.tests)} for it in {node}.src])")
    elif len(pattern.src) == 1:
      for i, x in enumerate(pattern.src[0]): self._add(case, x, f"{node}.src[{i}]")
    else:
      case.choices.append(orders := [Case() for _ in pattern.src])
      for one, order in zip(orders, pattern.src):
        for i, x in enumerate(order): self._add(one, x, f"{node}.src[{i}]")

  def lines(self, call: str) -> Iterator[str]:
    """The lines of the function. call: the call of the rule, with {} for its arguments."""
    yield f"def compiled_match(uop, ctx{''.join(f', {name}={name}' for name in self.values)}):"
    indent = "  "
    if tests := self.case.tests:
      yield f"  if {' and '.join(tests)}:"
      indent = "    "
    cases = list(_cases(self.case))
    if len(cases) > MOST: raise Unknown
    for case in cases:
      named, same = dict[str, str](), list[str]()
      for name, node in self.case.names + case.names:
        if (known := named.setdefault(name, node)) is not node: same.append(f"{known} is {node}")
      made = call.format(", ".join(f"{name}={node}" for name, node in named.items()))
      yield f"{indent}if {' and '.join([*case.tests, *same, f'(made:={made}) is not None'])}: return made"
    yield "  return None"

def _cases(case: Case) -> Iterator[Case]:
  """All combinations of a case's choices, those below them included."""
  for chosen in itertools.product(*case.choices):
    one = Case()
    for x in chosen:
      one.tests += x.tests
      one.names += x.names
    below = Case(choices=[choice for x in chosen for choice in x.choices])
    for more in _cases(below) if below.choices else (Case(),):
      yield Case(one.tests + more.tests, one.names + more.names)

def _names(code: types.CodeType) -> set[str]:
  return set(code.co_names).union(*(_names(x) for x in code.co_consts if isinstance(x, types.CodeType)))

def own(function: Callable) -> Callable:
  """A copy of a function that holds only the globals it uses, with their current values."""
  assert isinstance(function, types.FunctionType) and function.__closure__ is None, "a rule has no closure"
  known = function.__globals__
  used = {name: known[name] for name in _names(function.__code__) if name in known}
  return types.FunctionType(function.__code__, used, function.__name__, function.__defaults__)

@functools.cache
def compiled(pattern: UPat, function: Callable) -> Callable | None:
  """A function (node, context) -> the rule's result for a node that matches, else None."""
  try:
    writer = Writer(pattern)
    code = function.__code__
    names = code.co_varnames[:code.co_argcount + code.co_kwonlyargcount]
    text = "\n".join(writer.lines("rule(ctx=ctx, {})" if "ctx" in names else "rule({})"))
  except Unknown: return _stock(pattern, function)
  space = {**writer.values, "rule": own(function)}
  exec(text, space)
  made: Callable = space["compiled_match"]
  return made

_stock = upat.upat_compile

def install() -> None: places.replace(upat, "upat_compile", compiled)
