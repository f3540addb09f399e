"""
Table look-ups by byte shuffles (pshufb, tbl): a function of four bits is a look-up in a table of 16 bytes.

Why: Some formats' codes are no numbers (4-bit floats, levels of a codebook) and cost up to ten operations a weight.
  Every CPU has an instruction that looks up 16 bytes in a table of 16.
How: The pass works when a loop over lanes becomes vectors. It looks for values that depend on one field of at most 4
  bits, the same field of neighbouring bytes in neighbouring lanes. Such a value is evaluated for all codes. If the
  results are whole numbers of 8 bits, it becomes a table.
Rewrite:
  f((byte >> 4) & 15) for each lane, up to ten operations
  --> pshufb(table, (byte >> 4) & 15), table[c] = f(c)
Numbers: Matvec 8192 x 2048, one core, GB/s: IQ4_NL 4.1 -> 8.3, IQ4_XS 3.7 -> 6.6, MXFP4 2.3 -> 3.8 (Zen 4, medians of
  20).
Upstream: not sent; it needs loops over lanes first.
"""
from __future__ import annotations
from tinygrad.dtype import dtypes
from tinygrad.uop.ops import GroupOp, Ops, UOp
from tinygrad_llm.patches.ir.indices import evaluate
from tinygrad_llm.patches.ir.intrinsics import SHUFFLE, Intrinsic, Language
from tinygrad_llm.patches.vector.vectorizer import Vectorizer, vector_rules

SEAMS = {
  "tinygrad.uop.ops:exec_alu": "8e39e85b4a5a",
}

CODES = 16
LEAST = 3  # a look-up must replace at least so many operations

def codes(v: Vectorizer, u: UOp) -> frozenset[UOp]|None:
  """The bit fields that a value is a function of; None if it depends on anything else."""
  if u.op is Ops.CONST: return frozenset()
  if v.field(u) is not None: return frozenset((u,))
  if u.op not in GroupOp.ALU and u.op not in (Ops.CAST, Ops.BITCAST): return None
  found = [seen(v, s) for s in u.src]
  return None if None in found else frozenset().union(*found)  # type: ignore[arg-type]

def seen(v: Vectorizer, u: UOp) -> frozenset[UOp]|None:
  memo: dict[UOp, frozenset[UOp]|None] = v.notes.setdefault("table_lookup", {})
  if u not in memo: memo[u] = codes(v, u)
  return memo[u]

LOOK_UP = Intrinsic("look up bytes of 16", SHUFFLE, {
  Language.C: "__builtin_shufflevector({0},{1})",  # pshufb, from SSSE3 on
  Language.C_ARM: "({{unsigned_char16 r;__asm__(\"tbl %0.16b,{{%1.16b}},%2.16b\""
                  ":\"=w\"(r):\"w\"({0}),\"w\"({1}));r;}})"})

def lookup(v: Vectorizer, u: UOp) -> tuple[tuple[UOp, UOp|None, list[int], list[int]], list[int]]|None:
  """A value as a table: the field of at most 4 bits it depends on, and each code's integer; None if it is none."""
  if u.dtype.itemsize != 4 or not (leaves := seen(v, u)): return None
  if len(u.toposort(lambda x: x not in leaves)) - len(leaves) < LEAST: return None
  fields = {leaf: field for leaf in leaves if (field := v.field(leaf)) is not None}
  load, same, low, _ = min(fields.values(), key=lambda field: field[2][0])
  span = max(field[2][0] + field[3][0] - low[0] for field in fields.values())
  if len({field[0] for field in fields.values()}) != 1 or span > 4: return None
  starts = {}
  for leaf, (_, _, at, length) in fields.items():
    starts[leaf] = at[0] - low[0], (1 << length[0]) - 1
    if [a - b for a, b in zip(at, low)] != [starts[leaf][0]] * v.n or set(length) != {length[0]}: return None
  tables = v.notes.setdefault("tables", {})
  if (alike := _structure(u, starts)) not in tables:
    tables[alike] = [evaluate(u, {leaf: (code >> start) & mask for leaf, (start, mask) in starts.items()})
                     for code in range(1 << span)] * (CODES >> span)
  values = tables[alike]
  return ((load, same, low, [span] * v.n), [int(x) for x in values]) if all(x == int(x) for x in values) else None

def _structure(u: UOp, leaves: dict[UOp, tuple[int, int]]) -> tuple:
  """A key of u's expression, its leaves as (offset, mask) of their bits: weights with the same key share a table."""
  return leaves.get(u) or (u.op, u.dtype, u.arg, *[_structure(s, leaves) for s in u.src])

def table(v: Vectorizer, u: UOp) -> UOp|None:
  """The value in all lanes as a look-up; None if it cannot be one."""
  if v.n != 16 or (found := lookup(v, u)) is None: return None
  (load, same, low, (span, *_)), values = found
  if len(load.src) > 1 or low[0] % 8 + span > 8 or low != [low[0] + 8 * i for i in range(v.n)]: return None
  if min(values) < -128 or max(values) > 127: return None
  index = v.bits_of_octets(load, same, low[0], span)
  entries = UOp(Ops.STACK, src=tuple(UOp.cconst(x & 255, dtypes.uint8) for x in values))
  octets = UOp(Ops.CUSTOMI, dtypes.uint8, (entries, index), LOOK_UP.text(v.ren))
  return octets.bitcast(dtypes.int8).cast(u.dtype)

def install() -> None: vector_rules.append(table)
