"""
The accepted figures of the kernel regression suite, tests/kernels/CASE.KIND.json, and their differences from new ones.

A file has an entry for each group of targets with the same figures, named by all of them; a row is a line. A field that
differs between the steps of a kind, as the bytes of a cache do, is an object keyed by the steps.
"""
import collections
import itertools
import json
import pathlib
import re
import textwrap
from collections.abc import Iterable
from typing import Any

from tests.tools.kernel_cases import MAX_CONTEXT, STEPS, TARGETS

FOLDER = pathlib.Path(__file__).parents[1] / "kernels"
TOTALS = ("kernels", "bytes", "ops")
OF_ALL = ("count", "bytes", "ops")  # sums over a row's kernels
PINNED = ("role", "part", *OF_ALL, "name", "types", "schedule", "opts", "global_size", "local_size", "serial",
          "load_bytes", "lines", "nodes", "live")
OF_LARGEST = ("nodes", "live")  # maxima over a row's kernels
OF_TINYGRAD = {"stock", "none"}  # schedules that no pass chose

Report = dict[str, Any]

def pinned(found: Report) -> Report:
  """
  The part of a report that must not move. Registers are left out, because they depend on the compiler's version.

  Kernels that differ in nothing else are one row, with the largest kernel's nodes and live vectors.
  """
  rows = _merged({key: given[key] for key in PINNED} for given in found["roles"])
  return {key: found[key] for key in TOTALS} | {"stock": stock(found), "roles": rows}

def _merged(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
  """Rows, where those whose kernels differ in nothing but their nodes and live vectors are one."""
  merged: dict[str, dict[str, Any]] = {}
  for new in rows:
    each = [new[key] / new["count"] for key in ("bytes", "ops")]
    key = json.dumps([each, *(value for name, value in new.items() if name not in (*OF_ALL, *OF_LARGEST))])
    if (row := merged.setdefault(key, new)) is new: continue
    row |= {name: row[name] + new[name] for name in OF_ALL}
    if row["nodes"] and new["nodes"]: row["nodes"] = [max(pair) for pair in zip(row["nodes"], new["nodes"])]
    if row["live"] is not None and new["live"] is not None: row["live"] = max(row["live"], new["live"])
  return list(merged.values())

def stock(found: Report) -> list[str]:
  """The roles of reductions over a weight matrix that have tinygrad's own schedule."""
  return sorted({row["role"] for row in found["roles"] if is_product(row)
                 and OF_TINYGRAD & set((row["schedule"] or "none").split("+"))})

def is_product(row: dict[str, Any]) -> bool:
  """Whether a row's kernel reads a weight matrix and has a reduction (tinygrad's name for it begins with r)."""
  names = row["role"].replace("blk.*.", "").split("+")
  return names not in (["act"], ["kv"]) and re.match(r"(s\d+_)?r", row["name"]) is not None \
    and any(not re.search(r"norm|sinks|rope_freqs|exp_probs|\.bias$", name) for name in names)

# *** files

def path(case: str, kind: str) -> pathlib.Path: return FOLDER / f"{case}.{kind}.json"

def golden(case: str, kind: str) -> dict[str, dict[str, Report]]:
  """{target: {step: accepted report}}; {} without a file."""
  if not (file := path(case, kind)).exists(): return {}
  return {target: {step: _at(entry, step) for step in STEPS[kind]}
          for targets, entry in json.loads(file.read_text()).items() for target in targets.split()}

def text(found: dict[str, dict[str, Report]]) -> str:
  """The text of a golden file from {target: {step: pinned report}}."""
  groups: dict[str, list[str]] = {}
  for target in sorted(found, key=TARGETS.index):
    entry = _joined(found[target])
    totals = ", ".join(f'"{key}": {json.dumps(entry[key])}' for key in (*TOTALS, "stock"))
    rows = ",\n".join(f"  {json.dumps(row)}" for row in entry["roles"])
    groups.setdefault(f'{{{totals}, "roles": [\n{rows}]}}', []).append(target)
  return "{\n" + ",\n".join(f'"{" ".join(targets)}": {entry}' for entry, targets in groups.items()) + "\n}\n"

def _joined(steps: dict[str, Report]) -> Report:
  """
  Joins the reports of a kind's steps. AssertionError if their calls are not of the same kernels.

  Calls that are one row in each step are one. Two layers can read as many bytes at one depth, but not at another.
  """
  def join(parts: dict[str, dict[str, Any]], keys: Iterable[str]) -> dict[str, Any]:
    values = {key: {step: part[key] for step, part in parts.items()} for key in keys}
    first = next(iter(parts.values()))
    return {k: first[k] if all(v == first[k] for v in of.values()) else of for k, of in values.items()}
  calls = {step: _calls(report["roles"]) for step, report in steps.items()}
  names = {step: sorted(of) for step, of in calls.items()}
  assert all(a == b for a, b in itertools.pairwise(names.values())), f"the kernels depend on the depth: {names}"
  first = next(iter(calls.values()))
  joined = (join({step: of[call] for step, of in calls.items()}, row) for call, row in first.items())
  rows = [_times(row, len([*same])) for row, same in itertools.groupby(joined)]
  return join(steps, (*TOTALS, "stock")) | {"roles": rows}

def _calls(rows: list[dict[str, Any]]) -> dict[tuple[str, str, int], dict[str, Any]]:
  """A row for each call of a kernel, in order, by its role, its name, and the number of its call."""
  calls, made = dict[tuple[str, str, int], dict[str, Any]](), collections.Counter[tuple[str, str]]()
  for row in rows:
    kernel = row["role"], row["name"]
    for _ in range(row["count"]):
      calls[*kernel, made[kernel]] = row | {key: row[key] // row["count"] for key in OF_ALL}
      made[kernel] += 1
  return calls

def _times(row: dict[str, Any], count: int) -> dict[str, Any]:
  """The row of so many equal calls."""
  def total(value: Any) -> Any:
    return {step: n * count for step, n in value.items()} if isinstance(value, dict) else value * count
  return row | {key: total(row[key]) for key in OF_ALL}

def _at(entry: Report, step: str) -> Report:
  def at(part: dict[str, Any]) -> dict[str, Any]:
    return {key: value[step] if isinstance(value, dict) else value for key, value in part.items()}
  return at({k: v for k, v in entry.items() if k != "roles"}) | {"roles": _merged(map(at, entry["roles"]))}

# *** figures that only have bounds
# registers of a thread, at most: launch_bounds' limit, and NVIDIA's own
REGISTERS, OF_PTX = 128, 255
# {a role in a case's steps of a kind: {bytes of stack, at most: on these targets}}
STACK = {
  # ptxas would need 134 registers
  ("gpt-oss-20b-MXFP4_MOE", "decode", "output_norm+output"): {8: "CUDA:sm_90 NV:sm_90"},
  # eight rows of x by latent attention's keys: a matrix for each head
  ("deepseek-v2-lite-Q4_K_M", "rows", "blk.*.attn_k_b"): {
    48: "CUDA:sm_87 CUDA:sm_89 CUDA:sm_90 NV:sm_90", 56: "CUDA:sm_80"},
  # latent attention's keys, a product with rows of 128, and the attention of its prompts
  ("kimi-linear-48b-Q4_K_M", "prompt", "blk.*.attn_k_b"): {
    72: "CUDA:sm_100", 112: "CUDA:sm_80 CUDA:sm_87 CUDA:sm_89", 128: "CUDA:sm_90 NV:sm_90"},
  ("kimi-linear-48b-Q4_K_M", "prompt", "kv"): {72: "CUDA:sm_100", 368: "NV:PTX:sm_90"},
  ("deepseek-v2-lite-Q4_K_M", "prompt", "kv"): {64: "CUDA:sm_120", 72: "CUDA:sm_100", 376: "NV:PTX:sm_90"},
  # attention with heads of 512
  ("gemma-4-e4b-Q4_K_M", "prompt", "blk.*.attn_q_norm"): {
    136: "CUDA:sm_100 CUDA:sm_120", 224: "CUDA:sm_90 NV:sm_90", 392: "CUDA:sm_80",
    432: "CUDA:sm_87 CUDA:sm_89", 464: "NV:PTX:sm_90"},
  # by tinygrad's PTX renderer: matrices of several types in one kernel
  ("qwen35-4b-Q4_K_M", "prompt", "blk.*.attn_qkv+attn_gate+ssm_alpha+ssm_beta"): {1184: "NV:PTX:sm_90"},
  ("kimi-linear-48b-Q4_K_M", "prompt", "blk.*.attn_q+attn_kv_a_mqa"): {1184: "NV:PTX:sm_90"},
  ("kimi-linear-48b-Q4_K_M", "prompt", "blk.*.attn_q+attn_k+attn_v+ssm_f_a+ssm_g_a+ssm_beta"): {1184: "NV:PTX:sm_90"},
  ("kimi-linear-48b-Q4_K_M", "prompt", "blk.*.attn_v_b"): {304: "NV:PTX:sm_90"},
}
# bytes of stack of prefill kernels for tensor cores, at most, by their schedule: accumulators and fragments take 100
# registers, and loop-invariant values spill
PROMPT_STACK = {"gemm_gpu": 64, "online_softmax": 56}
PROMPT_STACK_OF_PTX = {"gemm_gpu": 288, "online_softmax": 320}  # tinygrad's PTX renderer places loads far ahead

def out_of_bounds(case: str, target: str, found: Report, kind: str = "decode") -> list[str]:
  """Registers and stacks on NVIDIA's targets that exceed their bounds, whatever the compiler's version."""
  if not target.startswith(("CUDA", "NV")): return []
  most, of_prompt = (OF_PTX, PROMPT_STACK_OF_PTX) if target.startswith("NV:PTX") else (REGISTERS, PROMPT_STACK)
  def stack(row: dict[str, Any]) -> int:
    known = of_prompt.get(row["schedule"], 0) if kind == "prompt" else 0
    listed = STACK.get((case, kind, row["role"]), {})
    return max(known, *(most for most, targets in listed.items() if target in targets.split()), 0)
  return [f"{row['role']}: {row['stack']} bytes of stack, {row['registers']} registers" for row in found["roles"]
          if not 0 <= row["stack"] <= stack(row) or not 0 < row["registers"] <= most]

# *** differences
WIDTH = 96   # columns of a field
ROLES = 4    # roles for which a command is shown, at most

Rows = tuple[dict[str, Any] | None, dict[str, Any] | None]

def moved_rows(old: Report, new: Report) -> list[Rows]:
  """
  Rows that differ, as (before, after), with None for a missing row.

  Rows of the same role, types and name are paired first, then the remaining ones of the same role and types, in order.
  """
  gone, came = ([row for row in a["roles"] if row not in b["roles"]] for a, b in ((old, new), (new, old)))
  pairs: list[Rows] = []
  for same in (("role", "types", "name"), ("role", "types")):
    for before in list(gone):
      after = next((row for row in came if all(row[key] == before[key] for key in same)), None)
      if after is None: continue
      pairs.append((before, after))
      gone.remove(before)
      came.remove(after)
  return [*pairs, *((row, None) for row in gone), *((None, row) for row in came)]

def fields(old: dict[str, Any] | None, new: dict[str, Any] | None) -> list[str]:
  """The fields in which two rows differ; all fields if one row is missing."""
  keys = dict.fromkeys((*(old or {}), *(new or {})))
  return [key for key in keys if old is None or new is None or old.get(key) != new.get(key)]

def moved(old: Report | None, new: Report) -> list[str]:
  """
  The differences of two pinned reports in blocks of lines: the totals, and each row that changed (~), went (-) or came
  (+).
  """
  if old is None: return [f"new: {', '.join(f'{key} {new[key]:,}' for key in TOTALS)}"]
  totals = [f"  {key:<10}{line}" for key in (*TOTALS, "stock") if old[key] != new[key]
            for line in _change(key, old[key], new[key])]
  return [*(["\n".join(totals)] if totals else []), *(_block(*pair) for pair in moved_rows(old, new))]

def _block(old: dict[str, Any] | None, new: dict[str, Any] | None) -> str:
  row = new or old or {}
  types = f" ({'+'.join(row['types'])})" if row["types"] else ""
  head = f"{row['count']:>3} x {row['role']}{types} {(old or row)['name']}"
  if old is None or new is None:
    lines = [f"{'+' if old is None else '-'} {head}", *_field("schedule", [str(row["schedule"])]),
             *_field("opts", [_cell(row["opts"])])]
  else:
    changes = {key: _change(key, old.get(key), new.get(key)) for key in fields(old, new)}
    lines = [f"~ {head}", *(line for key, parts in changes.items() for line in _field(key, parts))]
  return "\n".join(lines)

def _change(key: str, old: Any, new: Any) -> list[str]:
  """A changed value in one line, or in two if that is too long."""
  percent = f" ({new / old - 1:+.1%})" if key in TOTALS and old else ""
  before, after = _cell(old), f"-> {_cell(new)}{percent}"
  return [f"{before} {after}"] if len(before) + len(after) < WIDTH else [before, after]

def _cell(value: Any) -> str:
  if isinstance(value, int): return f"{value:,}"
  if not isinstance(value, (list, tuple)): return "-" if value is None else str(value)
  return ("x" if all(isinstance(v, int) for v in value) else " ").join(map(str, value)) or "-"

def _field(key: str, parts: list[str]) -> list[str]:
  lines = [line for part in parts for line in textwrap.wrap(part, WIDTH, subsequent_indent="   ")]
  return [f"        {'' if i else key:<14}{line}" for i, line in enumerate(lines)]

def table(case: str, kind: str, changes: dict[str, tuple[dict[str, Report], dict[str, Report]]]) -> str:
  """
  The differences of a case's kind, {target: ({step: before}, {step: after})}, and commands that show them; "" if none.

  Targets with the same differences are listed once, and so are the same differences at several depths.
  """
  groups: dict[str, list[str]] = {}
  shown: dict[str, list[str]] = {}
  for target, (before, after) in changes.items():
    parts, seen = list[str](), set[str]()
    for step, new in after.items():
      blocks = moved(old := before.get(step), new)
      fresh = [block for block in blocks if block not in seen]
      if blocks: parts += [f"{step}:", *(fresh or ["  the same"])]
      seen.update(blocks)
      if blocks: shown.setdefault(target, commands(case, target, step, _changed_roles(old, new)))
    if parts: groups.setdefault("\n".join(parts), []).append(target)
  return "\n\n".join("\n".join([f"=== {case}, {kind}: {' '.join(targets)}", body, "to see it:", *shown[targets[0]]])
                     for body, targets in groups.items())

def _changed_roles(old: Report | None, new: Report) -> list[str]:
  """Roles of the new report's rows that are not in the old one."""
  return [] if old is None else list(dict.fromkeys(after["role"] for _, after in moved_rows(old, new) if after))

def commands(case: str, target: str, step: str, roles: Iterable[str]) -> list[str]:
  """Shell commands that show a case's kernels in a step, and the source of some roles' kernels."""
  prompt, depth, rows = next(steps[step] for steps in STEPS.values() if step in steps)
  usual = {"-p": 0, "-d": 0, "--rows": 1}
  options = "".join(f" {option} {n}" for option, n in zip(usual, (prompt, depth, rows)) if n != usual[option])
  show = f"python -m tinygrad_llm.kernels -m {case}.gguf --target {target} --max-context {MAX_CONTEXT}{options}"
  sources = [f"  .. --source '{role}'" for role in roles]
  more = [f"  .. and {len(sources) - ROLES} more roles"] if len(sources) > ROLES else []
  return [f"  python tests/tools/kernel_cases.py --write {case} {case}.gguf", f"  {show}", *sources[:ROLES], *more]
