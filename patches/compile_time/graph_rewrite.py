"""
Graph rewrite: fewer steps of Python for each node, and no second pass over a graph in which no rule matches.

Why: graph_rewrite takes most of the time of lowering a kernel. It puts each node on its stack two or three times and
  reads a context variable each time. It also starts anew on a graph that it has just left unchanged: three of four
  calls of UOp.simplify do.
How: a node whose sources are done is not put on the stack, nor is the result of a rule. One look-up by a node's
  operation and its sources' operations finds the rules that may match. Without a context, a match depends on the node
  alone, so a graph in which nothing matched is marked for the next rewrite by the same rules. A substitution is a
  look-up in a dict; tinygrad does it by a rule that matches every node.
Numbers: CPU seconds to the first token of the bundled model, caches empty, PARALLEL=0: 17.4 -> 15.9 (2-core AMD EPYC),
  with implicit_inputs and type_inference on. Substitutions as look-ups: 0.93 of the processor seconds (3 pairs, AMD
  EPYC Zen 4) to schedule and lower two layers of a 1B Llama in Q4_K_M. That is a decode step and a prompt, at two
  depths each. Depth-first order, with match_code and kernel_calls: 0.91 of the time to lower SmolLM2 135M, a prompt and
  a decode step (6 pairs, 2-core AMD EPYC).
Upstream: not sent; its RewriteContext could be this one.
"""
from __future__ import annotations
import itertools
from collections.abc import Sequence
from typing import Any
from tinygrad.dtype import DType
from tinygrad.uop import ops
from tinygrad.uop.ops import BottomUpGate, Ops, PatternMatcher, RewriteContext, UOp
from tinygrad_llm.patches import places

SEAMS = {
  "tinygrad.uop.ops:RewriteContext": "a7faa5357f17",
  "tinygrad.uop.ops:PatternMatcher": "0f58da63cb85",
  "tinygrad.uop.ops:graph_rewrite": "04e56264ac2f",
  "tinygrad.uop.ops:_rebuild_dtype": "ec57f21a1460",
  "tinygrad.uop.ops:UOp.substitute": "27ba256df752",
  "tinygrad.uop.ops:_substitute": "95a6b0302d9f",
}

CALLS = (Ops.FUNCTION, Ops.CALL)
CIRCLE, GROWS, REWRITTEN = (f"infinite loop in graph_rewrite: {what}" for what in (
  "a rule leads back to where it began", "the graph grows without end", "a node is rewritten without end"))
NEW, PLACED, SAME = range(3)  # states: a node; its sources are on the stack or done; it became another node
_serial = itertools.count()

def rewrite(self: Any, uop: UOp, ctx: Any = None) -> UOp|None:
  """The result of the first rule that changes a node; None if no rule does."""
  if uop.op not in self.pdict: return None
  if (below := uop.__dict__.get("_below")) is None: uop.__dict__["_below"] = below = frozenset([x.op for x in uop.src])
  try: rules = self.by_ops[uop.op, below]
  except AttributeError: self.by_ops, rules = {}, None
  except KeyError: rules = None
  if rules is None: rules = self.by_ops[uop.op, below] = [rule for rule in self.pdict[uop.op] if rule[2] <= below]
  for _, match, _ in rules:
    if (made := match(uop, ctx)) is not None and made is not uop: return made  # type: ignore[no-any-return]
  return None

def _dtype(n: UOp, src: Sequence[UOp]) -> DType:
  for old, new in zip(n.src, src):
    if old.dtype is not new.dtype: return ops.dtype_from_uop(n.op, tuple(src), n.arg) or n.dtype
  return n.dtype

def _mark(context: RewriteContext) -> str|None:
  """The attribute that marks graphs in which no rule matches; None if a match depends on more than the graph."""
  rules = context.pm
  if context.bpm is not None or context.ctx is not None or type(rules) is not PatternMatcher: return None
  if (name := vars(rules).get("mark")) is None: vars(rules)["mark"] = name = f"_no_match_{next(_serial)}"
  return f"{name}_calls" if context.enter_calls else str(name)

def _before(context: RewriteContext, n: UOp) -> tuple[UOp, bool]:
  """A node after the rules of bpm, and whether they gate it: then its sources are not visited."""
  now, seen = n, {n}
  while True:
    try: made = context.cached_bpm_rewrite(now)
    except BottomUpGate: return now, True
    if made is None: return now, False
    if made in seen: raise RuntimeError(CIRCLE)
    seen.add(now := made)

def _last(substitutes: dict[UOp, UOp], n: UOp) -> UOp:
  """The last of a chain of substitutes that starts at a node; RuntimeError if the chain is a circle."""
  seen = {n}
  while (made := substitutes.get(n)) is not None:
    if made in seen: raise RuntimeError(CIRCLE)
    seen.add(n := made)
  return n

def unified_rewrite(self: RewriteContext, root: UOp) -> UOp:
  """Rewrites a graph until no rule matches: bpm's rules before a node's sources are visited, pm's rules after them."""
  substitutes = self.ctx if self.bpm is ops._substitute else None
  if self.ctx is not None and substitutes is None: return _counted(self, root)
  mark = _mark(self)
  if mark is not None and mark in root.__dict__: return root
  done, bpm, limit, match = self.replace, self.bpm, ops.REWRITE_STACK_LIMIT.value, self.pm and self.pm.rewrite
  moved, same = set[UOp](), dict[UOp, list[UOp]]()  # nodes that became others; {stacked node: nodes with its result}
  todo: list[UOp|None] = [root]                     # None: the sources of the node under it are done
  pop, push = todo.pop, todo.append
  while todo:
    ready = (top := pop()) is None
    now: UOp = pop() if top is None else top  # type: ignore[assignment]
    if now in done: continue
    chain = same.pop(now, None) if same else None
    result: UOp|None = None
    while True:
      if not ready:
        if mark is not None and mark in now.__dict__:
          result = now
          break
        if bpm is not None:
          first, gated = now, False
          if substitutes is None: now, gated = _before(self, now)
          elif now in substitutes: now = _last(substitutes, now)
          if gated:
            result, now = now, first
            break
          if now is not first:
            chain = [*(chain or ()), first]
            if (result := done.get(now)) is not None: break
        if now.op in CALLS: _leave_body(self, now)
        for x in now.src:
          if x not in done: break
        else: ready = True
        if not ready:
          if chain: same[now] = chain
          push(now)
          push(None)
          todo += now.src[::-1]
          if len(todo) > limit: raise RuntimeError(GROWS)
          break
      if moved and not moved.isdisjoint(now.src):
        src = tuple([done[x] for x in now.src])
        made: UOp|None = UOp(now.op, _dtype(now, src), src, now.arg, now.tag)
      elif not match or (made := match(now, None)) is None:
        if mark is not None: now.__dict__[mark] = True
        result = now
        break
      assert made is not None
      if chain is None: chain = [now]
      else: chain.append(now)
      if len(chain) > limit: raise RuntimeError(REWRITTEN)
      if (result := done.get(made)) is not None: break
      now, ready = made, False
    if result is None: continue
    for n in (now, *chain) if chain else (now,):
      done[n] = result
      if n is not result: moved.add(n)
  return done[root]

def _leave_body(self: RewriteContext, call: UOp) -> None:
  """Keeps the body of a call out of the rewrite."""
  if not self.enter_calls and (call.op is Ops.FUNCTION or call.src[0].op in UOp._OPAQUE_CALL_BODIES):
    self.replace[call.src[0]] = call.src[0]

def _counted(self: RewriteContext, root: UOp) -> UOp:
  """The same where rules may count nodes in their context: nodes come in tinygrad's order."""
  done, bpm, ctx, match = self.replace, self.bpm, self.ctx, self.pm and self.pm.rewrite
  limit = ops.REWRITE_STACK_LIMIT.value
  todo: list[tuple[UOp, int, UOp]] = [(root, NEW, root)]
  seen = {root}                                        # nodes that were on the stack
  waiting: dict[UOp, list[tuple[UOp, int, UOp]]] = {}  # {a node further down the stack: entries that wait for it}

  while todo:
    n, state, now = todo.pop()
    if n in done: continue
    result, chain = None, [n]  # nodes with one result: n and the nodes that it became in turn
    if state == SAME and (result := done.get(now)) is None:
      waiting.setdefault(now, []).append((n, SAME, now))
      continue
    while result is None:
      if state == NEW:
        if bpm is not None:
          now, gated = _before(self, now)
          if gated:
            result = now
            break
        if now.op in CALLS: _leave_body(self, now)
      src: list[UOp] = []
      changed = False
      for x in now.src:
        if (y := done.get(x)) is None: break
        if y is not x: changed = True
        src.append(y)
      else:
        if changed: made: UOp|None = UOp(now.op, _dtype(now, src), tuple(src), now.arg, now.tag)
        else:
          made = match(now, ctx) if match else None
          if made is None:
            result = now
            break
        assert made is not None
        if (result := done.get(made)) is None:
          chain.append(made)
          now, state = made, NEW
          if len(chain) > limit: raise RuntimeError(REWRITTEN)
        continue
      # a source is not done
      todo.extend([(same, SAME, chain[-1]) for same in chain[:-1]])
      if state == NEW:
        todo.append((chain[-1], PLACED, now))
        for x in reversed(now.src):
          if x not in seen:
            todo.append((x, NEW, x))
            seen.add(x)
        if len(todo) > limit: raise RuntimeError(GROWS)
      else: waiting.setdefault(x, []).append((chain[-1], PLACED, now))
      break
    if result is not None:
      for same in chain: done[same] = result
      if waiting:
        for same in chain:
          if same in waiting: todo.extend(waiting.pop(same))
  return done[root]

def walk_rewrite(self: RewriteContext, root: UOp) -> UOp:
  """Rewrites each node once: bpm's rules see the original node, pm's rules the node rebuilt from its new sources."""
  if self.bpm is ops._substitute: self.replace.update(self.ctx)  # a substitute is not rewritten
  elif self.bpm is not None: return _walk_rewrite(self, root)  # type: ignore[no-any-return]
  done, match, ctx, enter_calls = self.replace, None if self.pm is None else self.pm.rewrite, self.ctx, self.enter_calls
  todo: list[UOp|None] = [root]  # None: the sources of the node under it are done
  while todo:
    if (n := todo.pop()) is not None:
      if n in done: continue
      if not enter_calls and n.op in CALLS and (n.op is Ops.FUNCTION or n.src[0].op in UOp._OPAQUE_CALL_BODIES):
        done[n.src[0]] = n.src[0]
      if missing := [x for x in n.src if x not in done]:
        todo += (n, None)
        todo += reversed(missing)
        continue
    else: n = todo.pop()
    assert n is not None
    if n in done: continue
    src = tuple([done[x] for x in n.src])
    made = n if src == n.src else UOp(n.op, _dtype(n, src), src, n.arg, n.tag)
    if match is not None and (rewritten := match(made, ctx)) is not None: made = rewritten
    done[n] = made
  return done[root]

_walk_rewrite, _unified_rewrite = RewriteContext.walk_rewrite, RewriteContext.unified_rewrite

def install() -> None:
  places.replace(RewriteContext, "walk_rewrite", walk_rewrite)
  places.replace(PatternMatcher, "rewrite", rewrite)
  places.replace(RewriteContext, "unified_rewrite", unified_rewrite)
