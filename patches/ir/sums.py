"""
Sums of products: an expression is multiplied out as far as the caller needs.
"""
from __future__ import annotations
import functools, operator
from collections.abc import Callable, Iterable
from tinygrad.uop.ops import Ops, UOp
from tinygrad_llm.patches.ir.indices import inside

Factors = tuple[UOp, ...]  # the factors of one product

def product(factors: Iterable[UOp], *first: UOp) -> UOp:
  """The product of some factors, from left to right. first: a factor before them, needed if there may be none."""
  return functools.reduce(operator.mul, factors, *first)

def added(terms: Iterable[UOp|int], *first: UOp) -> UOp:
  """The sum of some terms, from left to right. first: a term before them, needed if there may be none."""
  made: UOp = functools.reduce(operator.add, terms, *first)  # type: ignore[arg-type, assignment]
  return made

def sum_of_products(u: UOp, is_whole: Callable[[list[Factors]], bool]) -> list[Factors]:
  """
  The products that u is the sum of.

  A factor that is itself a sum is multiplied out, unless is_whole(its products) keeps it as one factor.
  """
  if u.op is Ops.ADD: return [p for s in u.src for p in sum_of_products(s, is_whole)]
  if u.op is not Ops.MUL: return [(u,)]
  def side(x: UOp) -> list[Factors]:
    found = sum_of_products(x, is_whole)
    return [(x,)] if len(found) > 1 and is_whole(found) else found
  return [a + b for a in side(u.src[0]) for b in side(u.src[1])]

def has_constant(products: list[Factors]) -> bool:
  """Whether one of the products is a constant."""
  return any(all(f.op is Ops.CONST for f in p) for p in products)

def frees_a_factor(u: UOp, ranges: frozenset[UOp]) -> list[Factors]:
  """u as a sum of products; a factor is multiplied out only if its products depend on different ranges."""
  def is_whole(products: list[Factors]) -> bool:
    found = {functools.reduce(operator.or_, [inside(f, ranges) for f in p]) for p in products}
    return len(found) <= 1 or has_constant(products)
  return sum_of_products(u, is_whole)
