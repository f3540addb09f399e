"""
A kernel's graph as a few lines of pseudocode, and its figures.

  for a in 8, b in 2 THREAD, c in 16 lanes:
    p0[a b c] = p1[a b c] + sum1
    sum1 = sum d in 2, e in 4 UNROLL: bits(p2[d e]) * half(bits(p3[a b c d])) * ..

- `p0`: an argument of the kernel
- `p3[a d]`: a value loaded from the argument p3, at a place that depends on the loops a and d
- `bits(..)`: an integer that shifts and masks cut out of loaded words
- `sum1`, `array1`: a sum and an array of the kernel's own, defined in the lines below

Conversions that keep a number are left out, except those from an integer to a float. Added products with 0 are left
out, too.
"""
from __future__ import annotations
from collections import Counter
from collections.abc import Iterable
import difflib, math, textwrap
from typing import Any
from tinygrad.dtype import AddrSpace, Invalid, dtypes
from tinygrad.helpers import prod
from tinygrad.uop.ops import AxisType, GroupOp, Ops, UOp
from tinygrad_llm.patches.ir.intrinsics import called

WIDTH, MOST, SHORT = 116, 400, 24  # characters: a printed line, a statement, a shared term without a name
LANES = -1  # marks the id of a loop over lanes (vectorizer.py)
SIGNS = {Ops.ADD: "+", Ops.SUB: "-", Ops.MUL: "*", Ops.FDIV: "/", Ops.CMPLT: "<", Ops.CMPNE: "!=", Ops.CMPEQ: "==",
         Ops.AND: "&", Ops.OR: "|", Ops.XOR: "^", Ops.SHL: "<<", Ops.SHR: ">>", Ops.FLOORDIV: "//", Ops.FLOORMOD: "%"}
BINDS = {Ops.MUL: 3, Ops.FDIV: 3, Ops.ADD: 2, Ops.SUB: 2}  # precedence; others are always in brackets
BITS = {Ops.AND, Ops.OR, Ops.XOR, Ops.SHL, Ops.SHR, Ops.ADD, Ops.SUB, Ops.MUL, Ops.CAST, Ops.BITCAST, Ops.NEG}

class Names:
  """Names of loops and arrays, the same in all graphs of a kernel: a, b, .. z, a2, .. and array1, array2, .."""
  def __init__(self) -> None: self.loops, self.arrays = dict[tuple, str](), dict[int, str]()
  def loop(self, r: UOp) -> str:
    again, at = divmod(len(self.loops), 26)
    return self.loops.setdefault(r.arg[:-1], chr(ord("a") + at) + (str(again + 1) if again else ""))
  def array(self, u: UOp) -> str: return self.arrays.setdefault(u.arg.slot, f"array{len(self.arrays) + 1}")

def kind(r: UOp) -> str:
  """How a loop is run: its axis type, or "lanes"; "" for a plain loop."""
  if len(r.arg) > 2 and r.arg[1] == LANES: return "lanes"
  return "" if r.arg[-1] in (AxisType.WEAK, AxisType.LOOP) else r.arg[-1].name

def _is_int(u: UOp) -> bool: return dtypes.is_int(u.dtype) or u.dtype is dtypes.bool

def _type(u: UOp) -> str:
  if not _is_int(u): return str(u.dtype).removeprefix("dtypes.")
  return f"{'u' * dtypes.is_unsigned(u.dtype)}int{8 * u.dtype.itemsize}"

def _number(x: Any) -> str:
  if not isinstance(x, (float, int)): return "nothing"  # tinygrad's Invalid: a place that is never read
  return f"{x:.6g}" if isinstance(x, float) and (x % 1 or not math.isfinite(x)) else str(int(x))

def _is_zero(u: UOp) -> bool:
  while u.op is Ops.CAST: u = u.src[0]
  return u.op is Ops.CONST and u.val == 0 or u.op is Ops.MUL and any(map(_is_zero, u.src))

class Pseudocode:
  """The pseudocode of a kernel's graph, before its loops are expanded. lines: the result."""
  def __init__(self, sink: UOp, names: Names):
    self.names, self.memo, self.named = names, dict[UOp, str](), dict[UOp, str]()
    self.queue: list[tuple[UOp, str]] = []
    self.kinds, self.uses = Counter[str](), Counter(s for u in sink.toposort() for s in u.src)
    self.lines: list[str] = []
    for u in sink.src: self._statement(u, "")

  def _loops(self, ranges: Iterable[UOp], plain: tuple[str, ...] = ()) -> str:
    """The loops of these ranges as text: a in 8, b in 4 UNROLL"""
    loops = sorted({r for u in ranges for r in u.ranges}, key=lambda r: r.arg[:-1])
    kinds = [k if (k := kind(r)) not in plain else "" for r in loops]
    return ", ".join(f"{self.names.loop(r)} in {r.src[0].render()} {k}".rstrip() for r, k in zip(loops, kinds))

  def _statement(self, u: UOp, indent: str) -> None:
    if u.op in (Ops.GROUP, Ops.SINK):
      for s in u.src: self._statement(s, indent)
    elif u.op is Ops.END:
      self._add(f"{indent}for {self._loops(u.src[1:])}:")
      self._statement(u.src[0], indent + "  ")
    elif u.op is Ops.STORE:
      outer, self.queue, value = self.queue, [], u.src[1]
      self._add(f"{indent}{self._place(u.src[0])} = {self._sum(value) if value.op is Ops.REDUCE else self.text(value)}")
      while self.queue: self._definition(*self.queue.pop(0), indent)
      self.queue = outer
    else: self._add(indent + self.text(u))

  def _definition(self, u: UOp, name: str, indent: str) -> None:
    if u.op is Ops.AFTER:  # an array that was filled before
      for s in u.src[1:]: self._statement(s, indent)
    else: self._add(f"{indent}{name} = {self._sum(u) if u.op is Ops.REDUCE else self._text(u)}")

  def _sum(self, u: UOp) -> str:
    over = "sum" if u.arg[0] is Ops.ADD else u.arg[0].name.lower()
    return f"{over} {self._loops(u.src[1:], ('REDUCE',))}: {self.text(u.src[0])}"

  def _add(self, line: str) -> None: self.lines.append(line if len(line) <= MOST else f"{line[:MOST]} ..")

  def _later(self, u: UOp, kind: str) -> str:
    """The name of a node, whose definition follows."""
    if u not in self.named:
      self.kinds[kind] += 1
      self.named[u] = f"{kind}{self.kinds[kind]}"
      self.queue.append((u, self.named[u]))
    return self.named[u]

  def _place(self, u: UOp) -> str:
    """A place in memory, written as its buffer and the loops that it depends on."""
    ranges = sorted({r for i in u.src[1:] for r in i.ranges}, key=lambda r: r.arg[:-1])
    used = {self.names.loop(r) for r in ranges}  # this names new loops, too
    loops = " ".join(name for name in self.names.loops.values() if name in used)
    return f"{self._buffer(u.src[0])}[{loops}]" if loops else self._buffer(u.src[0])

  def _buffer(self, u: UOp) -> str:
    while u.op in GroupOp.Movement: u = u.src[0]
    if u.op is Ops.PARAM: return u.arg.name or f"p{u.arg.slot}"
    base = u.src[0] if u.op is Ops.AFTER else u
    name = self.names.array(base) if base.op is Ops.BUFFER else base.op.name.lower()
    if u.op is Ops.AFTER and u not in self.named:
      self.named[u] = name
      self.queue.append((u, name))
    return name

  def text(self, u: UOp) -> str:
    if u not in self.memo: self.memo[u] = self._shared(u)
    return self.memo[u]

  def _shared(self, u: UOp) -> str:
    if u.op is Ops.REDUCE: return self._later(u, "sum")
    text, again = self._text(u), self.uses[u] > 1 and u.op in GroupOp.ALU and not _is_int(u)
    return self._later(u, "t") if again and len(text) > SHORT else text

  def _text(self, u: UOp) -> str:
    if _is_int(u) and (words := self._words(u)) is not None: return words
    if u.op is Ops.CONST: return _number(u.val)
    if u.op is Ops.RANGE: return self.names.loop(u)
    if u.op is Ops.INDEX: return self._place(u)
    if u.op is Ops.AFTER: return self._buffer(u)
    if u.op is Ops.CAST and (not _is_int(u.src[0]) or _is_int(u)) or u.op is Ops.LOAD: return self.text(u.src[0])
    if u.op in (Ops.CAST, Ops.BITCAST): return f"{_type(u)}({self.text(u.src[0])})"
    if u.op is Ops.WHERE: return f"({self.text(u.src[0])} ? {self.text(u.src[1])} : {self.text(u.src[2])})"
    if u.op in (Ops.CUSTOM, Ops.CUSTOMI): return f"{called(u.arg)}({', '.join(map(self.text, u.src))})"
    if u.op in SIGNS and len(u.src) == 2: return self._infix(u)
    return f"{u.op.name.lower()}({', '.join(map(self.text, u.src))})"

  def _infix(self, u: UOp) -> str:
    a, b = u.src
    if u.op is Ops.ADD and (_is_zero(a) or _is_zero(b)): return self.text(b if _is_zero(a) else a)
    if u.op is Ops.ADD and b.op is Ops.CONST and b.val != Invalid and b.val < 0:
      return f"{self._inside(u, a)} - {_number(-b.val)}"
    return f"{self._inside(u, a)} {SIGNS[u.op]} {self._inside(u, b)}"

  def _inside(self, u: UOp, part: UOp) -> str:
    """An operand of an expression, in brackets where it binds less tightly."""
    text = self.text(part)
    while part.op is Ops.CAST and (_is_int(part) or not _is_int(part.src[0])): part = part.src[0]
    written = part.op in SIGNS and part not in self.named and " " in text and not text.startswith("bits(")
    return f"({text})" if written and BINDS.get(part.op, 0) < BINDS.get(u.op, 4) else text

  def _words(self, u: UOp) -> str|None:
    """bits(..) for an integer made of words of one buffer; None if there is more in it."""
    if u.op not in BITS: return None
    inside = u.toposort(lambda v: v.op is not Ops.INDEX)
    loads = dict.fromkeys(s for v in inside for s in v.src if s.op is Ops.INDEX)
    if not loads or any(v.op in (Ops.REDUCE, Ops.CUSTOM) for v in inside): return None
    if len({self._buffer(v.src[0]) for v in loads}) != 1: return None
    return f"bits({', '.join(dict.fromkeys(map(self._place, loads)))})"

def lines(sink: UOp, names: Names) -> list[str]: return Pseudocode(sink, names).lines

def wrapped(line: str, first: str = "") -> list[str]:
  """A line behind a first word, wrapped to lines of at most WIDTH characters."""
  text = first + line
  indent = " " * (len(first) + len(line) - len(line.lstrip()))
  return textwrap.wrap(text, WIDTH, subsequent_indent=f"{indent}    ", break_long_words=False)

def changes(before: list[str], after: list[str]) -> list[str]:
  """The removed lines, then the added ones, with - and + in front."""
  found = [line for line in difflib.ndiff(before, after) if line[0] in "-+"]
  return sorted(found, key=lambda line: line[0] == "+")

# *** figures

def _operations(u: UOp) -> int:
  """How often a kernel does an operation, if it is done in the loops that it depends on and in no others."""
  ranges = {*u.ranges, *(r for s in u.src[1:] for r in s.ranges)} if u.op is Ops.REDUCE else u.ranges
  return prod(int(r.vmax) + 1 for r in ranges)

def _is_operation(u: UOp) -> bool:
  if u.op is Ops.CAST: return dtypes.is_float(u.dtype) and _is_int(u.src[0])
  return (u.op in GroupOp.ALU or u.op is Ops.REDUCE) and u.dtype is not dtypes.weakint

def is_expanded(sink: UOp) -> bool:
  """Whether loops are expanded. The graph is large then, and computes addresses as it does other integers."""
  return any(u.op is Ops.LOAD for u in sink.toposort())

def figures(sink: UOp) -> dict[str, str]:
  """Counts of a graph: nodes, loops, sums, loads, and operations in all iterations of all loops."""
  ops = sink.toposort()
  loops = sorted((u for u in ops if u.op is Ops.RANGE and u.vmax > 0), key=lambda r: r.arg[:-1])
  kinds = {k: [r.src[0].render() for r in loops if kind(r) == k] for k in dict.fromkeys(map(kind, loops))}
  arrays = [u for u in ops if u.op is Ops.BUFFER and u.addrspace is AddrSpace.REG]
  loads = Counter(u.max_numel() * u.dtype.itemsize for u in ops if u.op is Ops.LOAD and _is_argument(u.src[0]))
  stored = {u.src[0] for u in ops if u.op is Ops.STORE}
  places = [u for u in ops if u.op is Ops.INDEX and u not in stored and _is_argument(u)]
  found = {"UOps": f"{len(ops):,}",
           "loops": ", ".join(" ".join((*([k] if k else []), *sizes)) for k, sizes in sorted(kinds.items())) or "none",
           "sums": str(sum(u.op is Ops.REDUCE for u in ops)), "arrays and sums in registers": str(len(arrays)),
           "loads": ", ".join(f"{n} of {width} B" for width, n in sorted(loads.items())) or str(len(places))}
  for name, of in (("floats", dtypes.is_float), *([("integers", dtypes.is_int)] if not is_expanded(sink) else [])):
    done = sum(_operations(u) for u in ops if _is_operation(u) and of(u.dtype))
    found[f"operations on {name}"] = f"{done:,}"
  return found

def _is_argument(u: UOp) -> bool:
  while u.op in (Ops.INDEX, Ops.SHRINK) or u.op in GroupOp.Movement: u = u.src[0]
  return u.op is Ops.PARAM
