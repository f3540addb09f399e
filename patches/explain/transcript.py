"""A recording as text: a numbered step for each patch that changed the kernel."""
from __future__ import annotations
from collections.abc import Iterator, Sequence
from typing import Any
from tinygrad.codegen.opt import Opt, OptOps
from tinygrad.uop.ops import Ops, UOp
from tinygrad_llm.patches.ir.intrinsics import called
from tinygrad_llm import patches
from tinygrad_llm.patches import sentence
from tinygrad_llm.patches.explain import pseudocode
from tinygrad_llm.patches.explain.pipeline import SCHEDULER
from tinygrad_llm.patches.explain.recording import PASS, RULE, Recorder, Step
from tinygrad_llm.patches.ir.actions import ScheduleOps

SHOWN = 8   # lines of each side of a change
BRIEF = 72  # characters of an answer
LEGEND = "   (p3[a b]: loaded where loops a and b say; bits(..): cut out of words by shifts and masks)"
MEANING = {
  OptOps.UPCAST: "unroll an output loop", OptOps.UNROLL: "unroll a loop of a sum", OptOps.THREAD: "share among cores",
  OptOps.LOCAL: "threads of a group, a row each", OptOps.GROUP: "threads of a group share a sum",
  OptOps.GROUPTOP: "threads of a group share a sum, far apart", OptOps.NOLOCALS: "no groups", OptOps.TC: "tensor cores",
  OptOps.PADTO: "pad", OptOps.SWAP: "swap loops"}

def opts(chosen: Sequence[Opt]) -> str: return " ".join(f"{o.op.name}:{o.axis}:{o.arg}" for o in chosen) or "none"

def meaning(o: Opt) -> str:
  """
  The meaning of an action. The values of ScheduleOps (patches/ir/actions.py) say themselves what their amounts count.
  """
  if isinstance(o.op, ScheduleOps): return str(o.op.value).split(" (")[0]
  return MEANING[o.op] + (f", {o.arg} steps" if o.arg else ", all its steps" if o.arg == 0 else "")

def title(patch: str) -> str: return f"{patches.module_of(patch)}: {sentence(patch)}"

def text(recorder: Recorder) -> str:
  """All steps; consecutive steps of tinygrad itself are told as one."""
  return "\n\n".join("\n".join(block) for block in _blocks(recorder))

def _groups(steps: Sequence[Step]) -> list[list[Step]]:
  """Neighbours that are told as one: passes of tinygrad, or rules of one patch."""
  groups: list[list[Step]] = []
  for step in steps:
    last = groups[-1][-1] if groups else step
    same = (last.patch, last.kind is PASS, last.opts, step.opts) == (step.patch, step.kind is PASS, None, None)
    if groups and same and not (step.patch and step.kind is PASS): groups[-1].append(step)
    else: groups.append([step])
  return groups

def _blocks(recorder: Recorder) -> Iterator[list[str]]:
  number, names, known = 0, pseudocode.Names(), list[str]()
  for group in _groups(recorder.steps):
    first, last = group[0], group[-1]
    if first.kind is PASS and not known:
      known = pseudocode.lines(first.before, names)
      yield ["the kernel as the scheduler made it", *_now(first.before), *_written(_cut(known)), LEGEND]
    if not first.patch and first.opts is None:
      known = _lines(last.after, names) or known
      if moved := _moved(first.before, last.after): yield [f"tinygrad: {_enumerated([s.name for s in group])}", *moved]
      continue
    number += 1
    block = pseudocode.wrapped(f"{number}. {title(first.patch) if first.patch else 'tinygrad: opts'}")
    if first.opts is not None: block += _chosen(first)
    if first.kind is PASS:
      block += _moved(first.before, last.after)
      if after := _lines(last.after, names): block += _written(_limited(pseudocode.changes(known, after)))
      known = after or known
    yield block if first.kind is PASS else block + [line for step in group for line in _answer(step)]
  if idle := [patches.module_of(name) for name in recorder.idle if not any(s.patch == name for s in recorder.steps)]:
    yield pseudocode.wrapped(f"had a look and changed nothing: {', '.join(idle)}")

def _lines(sink: UOp, names: pseudocode.Names) -> list[str]:
  """
  The pseudocode of a graph; [] once its loops are expanded: it is too long then, and the source code follows soon.
  """
  return [] if pseudocode.is_expanded(sink) else pseudocode.lines(sink, names)

def _enumerated(names: list[str]) -> str:
  names = [name.strip("* ") for name in names if name]
  return ", ".join(names) if len(names) <= 4 else f"{names[0]}, {names[1]}, .. {names[-1]} ({len(names)} passes)"

def _written(lines: list[str]) -> list[str]:
  return [part for line in lines
          for part in pseudocode.wrapped(line[2:] if line[:2] in ("- ", "+ ") else line,
                                         f"   {line[:2]}" if line[:2] in ("- ", "+ ") else "     ")]

def _cut(lines: list[str], sign: str = "") -> list[str]:
  return lines[:SHOWN] + [f"{sign}.. {len(lines) - SHOWN} lines more"] * (len(lines) > SHOWN)

def _limited(diff: list[str]) -> list[str]:
  return [line for sign in "-+" for line in _cut([line for line in diff if line[0] == sign], f"{sign} ")]

def _now(sink: UOp) -> list[str]:
  return [f"   {name}: {value}" for name, value in pseudocode.figures(sink).items() if value != "0"]

def _moved(before: UOp, after: UOp) -> list[str]:
  old, new = pseudocode.figures(before), pseudocode.figures(after)
  return [line for name in new if name in old and old[name] != new[name]
          for line in pseudocode.wrapped(f"{name}: {old[name]} -> {new[name]}", "   ")]

def _chosen(step: Step) -> list[str]:
  meanings: dict[str, list[str]] = {}
  for o in step.opts or (): meanings.setdefault(meaning(o), []).append(opts([o]))
  width = max((len(" ".join(names)) for names in meanings.values()), default=0)
  lines = [f"   {' '.join(names):{width}}  {meaning}" for meaning, names in meanings.items()]
  return [*lines, f"   without the patch: {opts(step.instead or ())}"] if step.patch else lines

def _answer(step: Step) -> list[str]:
  times, name = "once" if step.count == 1 else f"{step.count} times", step.place.split(":")[1]
  if step.kind is RULE:
    line = f"rule {step.name} of {name}, {times}: {_brief(step.before)} -> {_brief(step.after)}"
  else:
    line = f"{name}, {times}: {_brief(step.after)}"
    if isinstance(step.before, list) and isinstance(step.after, list):
      line = f"{name}, {times}: {_brief([x for x in step.after if x not in step.before])} added"
    elif step.before is not None: line += f" instead of {_brief(step.before)}"
  return pseudocode.wrapped(line, "   ")

def _brief(x: Any) -> str:
  if isinstance(x, UOp):
    kind = f"{x.op.name} {x.dtype}".replace("dtypes.", "").removesuffix(" void")
    call = f" {called(x.arg)}(..)" if x.op in (Ops.CUSTOM, Ops.CUSTOMI) else ""
    return f"{kind}{call} of {len(x.toposort())} UOps"
  if isinstance(x, list): x = x[0] if x else ""
  text = " ".join(x.split()) if isinstance(x, str) else "nothing" if x is None else str(x)
  return text if len(text) <= BRIEF else f"{text[:BRIEF]} .."

def scheduler(recorder: Recorder) -> str:
  """The work of the scheduler's patches in a whole step of the model, since the scheduler knows no kernels yet."""
  found = [step for step in recorder.steps if step.stage == SCHEDULER and step.patch]
  return "\n".join(f"{title(step.patch)}\n   {step.count} times in the whole step, {step.place}" for step in found)
