"""python -m tinygrad_llm.kernels: what a decode step compiles to. No weight is read, nothing runs, no GPU is needed."""
from __future__ import annotations
import argparse, json
from collections import Counter
from typing import TYPE_CHECKING, Any
from tinygrad_llm.command import Parser, guarded
from tinygrad_llm.errors import InputError
from tinygrad_llm.hub import locate
from tinygrad_llm.target import open_target
if TYPE_CHECKING: from tinygrad_llm.program import Program

def _parser() -> argparse.ArgumentParser:
  parser = Parser(prog="python -m tinygrad_llm.kernels",
                  description="List the kernels that a decode step compiles to. Of the model, only the header is read.")
  add = parser.add_argument
  add("-m", "--model", help="path of a .gguf file, a name of `run --list`, or hf:owner/repo[:file or quant type] "
                            "(default: the bundled model)")
  add("--target", help="CUDA:sm_90 and the like compile for a card that need not be here; or a DEV string of tinygrad, "
                       "as CPU, CL, METAL (default: DEV, else tinygrad's default device)")
  add("-d", "--depth", type=int, default=0, help="tokens in the KV cache (default 0)")
  add("--max-context", type=int, default=4096, help="positions of the KV cache (default 4096, at most the model's own)")
  output = parser.add_mutually_exclusive_group()
  output.add_argument("--source", metavar="ROLE", help="print the code of the kernels of a role instead")
  output.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
  return parser

def decode_programs(model: str | None, max_context: int = 4096, depth: int = 0) -> list[Program]:
  """
  The kernels of a decode step at position `depth`, in order, for tinygrad's default device.

  It is the step that LLM captures, built over tensors without memory. InputError as LLM.
  """
  from tinygrad_llm.device import without_memory
  from tinygrad_llm.engine import LLM
  from tinygrad_llm.program import capture, programs
  with without_memory():
    llm = LLM(model, max_context=max_context, chunk=1, dequantize=False, progress=False)
    if not 0 <= depth < llm.max_context:
      raise InputError(f"--depth {depth}: give 0 to {llm.max_context - 1}, or another --max-context (the model allows "
                       f"{llm.config.context_length})")
    assert llm._decode.fxn is not None
    step, variables = capture(llm._decode.fxn, llm._token, llm._position(depth))
  caches = [block.attn.cache.kv for block in llm.model.blocks]
  return programs(step, variables, llm.weights, caches)

def report(target: str, step: list[Program]) -> dict[str, Any]:
  """
  What --json prints. `bytes` and `ops` are tinygrad's estimates, of all `count` kernels of a row together.

  A row is all kernels that look the same; rows are in the order of the step. role: the tensors of the file that they
  read, * for the layer's number; else kv (the cache) or act (activations). types: of those tensors. opts: OP:axis:arg
  each. load_bytes: how wide most bytes of the weights, or of the cache, are loaded. registers, stack: of a thread, on
  CUDA; a stack above 0 is spilled registers.
  """
  rows: Counter[str] = Counter(json.dumps(program.row()) for program in step)
  roles = []
  for text, count in rows.items():
    row = json.loads(text)
    roles.append({"role": row.pop("role"), "count": count, "bytes": count * row.pop("bytes"),
                  "ops": count * row.pop("ops"), **row})
  return {"target": target, "kernels": len(step), "bytes": sum(row["bytes"] for row in roles),
          "ops": sum(row["ops"] for row in roles), "roles": roles}

def _table(found: dict[str, Any]) -> str:
  def dims(sizes: list[int] | None) -> str: return "x".join(map(str, sizes)) if sizes else "-"
  def cell(value: Any) -> str: return "-" if value is None else str(value)
  rows = [("n", "MB", "role", "types", "opts", "global", "local", "regs", "stack", "load")]
  rows += [(str(r["count"]), f"{r['bytes'] / 1e6:.2f}", r["role"], "+".join(r["types"]), " ".join(r["opts"]) or "-",
            dims(r["global_size"]), dims(r["local_size"]), cell(r["registers"]), cell(r["stack"]),
            cell(r["load_bytes"])) for r in found["roles"]]
  widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
  left = (2, 3, 4)  # columns of words
  lines = ["  ".join(c.ljust(w) if i in left else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths))).rstrip()
           for row in rows]
  return "\n".join([*lines, f"{found['target']}: {found['kernels']} kernels, {found['bytes'] / 1e6:.1f} MB and "
                            f"{found['ops'] / 1e9:.2f} Gop a token"])

def _sources(step: list[Program], role: str) -> str:
  if not (sources := dict.fromkeys(p.source for p in step if p.role == role)):
    raise InputError(f"--source {role!r:.80}: no kernel has that role; it has {', '.join({p.role: 0 for p in step})}")
  return "\n\n".join(source.strip() for source in sources)

def _main() -> None:
  args = _parser().parse_args()
  if args.max_context < 1: raise InputError(f"--max-context {args.max_context}: give at least 1 position")
  locate(args.model)  # a wrong name is known at once
  target = open_target(args.target)
  step = decode_programs(args.model, args.max_context, args.depth)
  if args.source is not None: return print(_sources(step, args.source))
  found = report(target, step)
  print(json.dumps(found) if args.json else _table(found))

def main() -> None: guarded(_main)

if __name__ == "__main__": main()
