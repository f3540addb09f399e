"""python -m tinygrad_llm.kernels: what a step compiles to. No weight is read, nothing runs, no GPU is needed."""
from __future__ import annotations
import argparse, fnmatch, json, pathlib
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple
from tinygrad_llm.command import Parser, check_writable, guarded
from tinygrad_llm.device.device import open_target
from tinygrad_llm.errors import InputError
from tinygrad_llm.files.hub import locate
from tinygrad_llm.patches.search.cost.hardware import CPU, GPU, KNOWN, cards, named
if TYPE_CHECKING:
  from tinygrad import Tensor, UOp
  from tinygrad_llm.analysis.programs import Program, Reads, Rows

SOURCE_LINES = 12  # lines of source that --explain shows

def _parser() -> argparse.ArgumentParser:
  parser = Parser(prog="python -m tinygrad_llm.kernels",
                  description="List the kernels of a decode step or a prompt. Only the model's header is read.")
  add = parser.add_argument
  add("-m", "--model", help="path of a .gguf file, a name of `run --list`, or hf:owner/repo[:file or quant type] "
                            "(default: the bundled model)")
  add("--target", help="compile for hardware that need not be here: CUDA:sm_90, NV:sm_90, NV:PTX:sm_90 (these need the "
                       "extra cuda), METAL:Apple9, CPU:x86-64-v3, CPU:x86-64-v4, CPU:sapphirerapids, CPU:arm64; or a "
                       "DEV string of tinygrad, such as CPU, CL, METAL (default: DEV, else tinygrad's default device)")
  add("-d", "--depth", type=int, default=0, help="tokens in the KV cache (default 0)")
  add("-p", "--prompt", type=int, default=0, metavar="N", help="a prompt chunk of N tokens instead of a decode step")
  add("--rows", type=int, default=1, metavar="N", help="sequences of a decode step: 1, 2, 4 or 8 (default 1)")
  add("--card", metavar="NAME", help="estimate times for this card, such as 'RTX 4090' (default: one of "
                                     "the target's architecture; list: print the known cards with theirs)")
  add("--max-context", type=int, default=4096, help="positions of the KV cache (default 4096, at most the model's own)")
  output = parser.add_mutually_exclusive_group()
  output.add_argument("--source", metavar="ROLE", help="print the code of a role's kernels instead")
  output.add_argument("--explain", metavar="ROLE[:TYPE]", help="show how each pass changes a role's kernel (* matches "
                      "any letters; TYPE: the type of its weights)")
  output.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
  output.add_argument("--html", type=pathlib.Path, metavar="FILE", help="write a timeline of estimates instead, with "
                      "each kernel's code; this lowers the kernels again, about a second each")
  return parser

class Step(NamedTuple):
  """A step that is scheduled but not compiled. weights: keyed by the buffer that holds them."""
  linear: UOp
  variables: dict[str, int]
  weights: dict[UOp, Rows]
  caches: list[Tensor]

def decode_step(model: str | None, max_context: int = 4096, depth: int = 0, prompt: int = 0, rows: int = 1) -> Step:
  """
  Schedules a decode step at position `depth`, or the prefill of a prompt there, for tinygrad's default device.

  prompt: tokens of the prompt's chunk; 0: a decode step. It is the step that LLM captures, built over tensors without
  memory. For a prompt, that is a chunk and the logits after its last token. InputError as from LLM, and for a `depth`
  or `prompt` beyond the context.

  rows: the step has 1, 2, 4 or 8 sequences in a pool that holds their contexts. A prompt is of one of them.
  """
  from tinygrad_llm.analysis.programs import Rows
  from tinygrad.helpers import ceildiv
  from tinygrad_llm.device.buffers import without_memory
  from tinygrad_llm.engine.batch.row_steps import COUNTS, RowSteps
  from tinygrad_llm.engine.llm import LLM
  from tinygrad_llm.nn.cache.place import BLOCK
  if rows not in COUNTS: raise InputError(f"--rows {rows}: give one of {', '.join(map(str, COUNTS))}")
  with without_memory():
    llm = LLM(model, max_context=max_context, chunk=max(prompt, 1), dequantize=False, progress=False)
    if not 0 <= depth < llm.max_context:
      raise InputError(f"--depth {depth}: give 0 to {llm.max_context - 1}, or another --max-context (the model allows "
                       f"{llm.config.context_length})")
    if not 0 <= prompt <= llm.max_context - depth:
      raise InputError(f"--prompt {prompt}: give 0 to {llm.max_context - depth}, or another --max-context (the model "
                       f"allows {llm.config.context_length})")
    steps = RowSteps(llm.model, llm.positions, llm.chunk, 1 + rows * ceildiv(llm.max_context, BLOCK))
    linear, variables = steps.piece_schedule(depth) if prompt else steps.decode_schedule(rows, depth)
  return Step(linear, variables, {w.stored.uop.base: Rows(w.qtype.name, names) for names, w in llm.weights.items()},
              steps.pools)

def programs_of(step: Step) -> list[Program]:
  """The compiled kernels of a step, in order."""
  from tinygrad_llm.analysis.programs import compiled, programs
  from tinygrad_llm.analysis.roles import groups
  found = programs(compiled(step.linear), step.variables, step.weights, step.caches)
  parts = groups([program.call for program in found], step.weights, {cache.uop.base for cache in step.caches})
  for program, part in zip(found, parts): program.part = part
  return found

def decode_programs(model: str | None, max_context: int = 4096, depth: int = 0, prompt: int = 0, rows: int = 1
                    ) -> list[Program]:
  """The compiled kernels of a decode step at `depth`, or of a prompt, in order. InputError as from LLM."""
  return programs_of(decode_step(model, max_context, depth, prompt, rows))

def report(target: str, step: list[Program], card: GPU | CPU | None = None) -> dict[str, Any]:
  """
  The object that --json prints.

  Kernels that look the same share a row; rows are in the order of the step. `bytes` and `ops` are tinygrad's estimates
  for all `count` kernels of a row together.

  - card: the hardware that times are estimated for; None: no estimates. gbs: its memory bandwidth
  - estimate_us: time of all `count` kernels by the cost model of patches/search. bound: the resource that limits it
  - role: the tensors of the file that the kernel reads, * for the layer's number; else kv (the cache) or act
    (activations)
  - part: the kernel's purpose in words. types: the types of the role's tensors
  - schedule: the module of patches/schedule or attention that chose its loops. A kernel of several stages may have
    several, with + between them. Otherwise stock (tinygrad's own rules), or none (no loop was changed)
  - opts: the optimisations, OP:axis:arg each
  - load_bytes: the width at which most bytes of the weights, or of the cache, are loaded
  - registers, stack: per thread, on CUDA. A stack above 0 means spilled registers
  - serial: the iterations of a thread's longest nest of loops
  - lines: cache lines that a warp's load touches, for the largest argument that is loaded and for all others; null
    without warps
  - nodes: three sizes of the kernel: its graph when its loops are chosen, its graph when they are expanded and all is
    lowered, and its instructions in the end. Compiling spends its time on these. Each is the largest of the row
  - live: bytes of vectors that are alive at once in the order of a CPU's program, the largest of the row; null on GPUs
  """
  rows: dict[str, list[Program]] = {}
  for program in step:
    row = program.row()
    del row["nodes"], row["live"]  # they differ a little between kernels that are otherwise alike
    rows.setdefault(json.dumps(row), []).append(program)
  roles = []
  for text, alike in rows.items():
    row, count, graphs = json.loads(text), len(alike), [program.nodes for program in alike]
    most = None if None in graphs else [max(n) for n in zip(*(nodes for nodes in graphs if nodes))]
    us, bound = (found.us, found.bound) if card and (found := alike[0].estimate(card)) else (None, None)
    roles.append({"role": row.pop("role"), "count": count, "bytes": count * row.pop("bytes"),
                  "ops": count * row.pop("ops"), **row, "nodes": most,
                  "live": max((program.live for program in alike if program.live is not None), default=None),
                  "estimate_us": None if us is None else round(count * us, 2), "bound": bound})
  return {"target": target, "kernels": len(step), "bytes": sum(row["bytes"] for row in roles),
          "ops": sum(row["ops"] for row in roles), "card": {"name": card.name, "gbs": card.dram} if card else None,
          "estimate_us": round(sum(row["estimate_us"] for row in roles), 2) if card else None, "roles": roles}

def _table(found: dict[str, Any], prompt: int, card: GPU | CPU | None) -> str:
  def dims(sizes: list[int] | None) -> str: return "x".join(map(str, sizes)) if sizes else "-"
  def cell(value: Any) -> str: return "-" if value is None else str(value)
  rows = [("n", "MB", "est us", "bound", "role", "part", "types", "opts", "global", "local", "serial", "regs", "stack",
           "load", "lines")]
  rows += [(str(r["count"]), f"{r['bytes'] / 1e6:.2f}", cell(r["estimate_us"]), cell(r["bound"]), r["role"],
            r["part"] if r["role"] in ("kv", "act") else "", "+".join(r["types"]), " ".join(r["opts"]) or "-",
            dims(r["global_size"]), dims(r["local_size"]), cell(r["serial"]), cell(r["registers"]), cell(r["stack"]),
            cell(r["load_bytes"]), "/".join("-" if n is None else f"{n:g}" for n in r["lines"] or [None]))
           for r in found["roles"]]
  widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
  left = (3, 4, 5, 6, 7)  # columns that are aligned left
  lines = ["  ".join(c.ljust(w) if i in left else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths))).rstrip()
           for row in rows]
  unit = f"chunk of {prompt} tokens" if prompt else "token"
  lines.append(f"{found['target']}: {found['kernels']} kernels, {found['bytes'] / 1e6:.1f} MB and "
               f"{found['ops'] / 1e9:.2f} Gop a {unit}")
  if card is not None:
    least = found["bytes"] / card.dram * 1e-3
    lines.append(f"estimate, not measured, for {card.name}: {found['estimate_us']:,.0f} us a {unit}; its bytes at "
                 f"{card.dram:,} GB/s take {least:,.0f} us ({least / found['estimate_us']:.0%})")
  return "\n".join(lines)

def _sources(step: list[Program], role: str) -> str:
  if not (sources := dict.fromkeys(p.source for p in step if p.role == role)):
    raise InputError(f"--source {role!r:.80}: no kernel has that role; it has {', '.join({p.role: 0 for p in step})}")
  return "\n\n".join(source.strip() for source in sources)

def explain(model: str | None, role: str, max_context: int = 4096, depth: int = 0, prompt: int = 0, rows: int = 1
            ) -> str:
  """
  How the first kernel of a role is made, pass by pass, and the beginning of its source.

  role: as in report(), or a pattern; a :TYPE after it chooses among kernels of several types. InputError if no kernel
  has the role, or if the pattern matches several roles.
  """
  from tinygrad.engine.realize import get_call_arg_uops
  from tinygrad.uop.ops import Ops
  from tinygrad_llm.analysis.programs import Program, Reads, lowered
  from tinygrad_llm.patches.explain import recording, transcript
  with recording.recording() as of_step: step = decode_step(model, max_context, depth, prompt, rows)
  caches = {cache.uop.base for cache in step.caches}
  calls = [(call, Reads.of(call, step.weights, caches)) for call in step.linear.src if call.src[0].op is Ops.SINK]
  call, reads = (found := _of_role(calls, role))[0]
  with recording.recording() as of_kernel: program = Program(lowered(call), step.variables, step.weights, caches)
  names = ("+".join(reads.weights[i].names) + f" {reads.weights[i].type}" if i in reads.weights else
           "KV cache" if i in reads.caches else "activations" for i in range(len(get_call_arg_uops(call))))
  arguments = [f"  p{i}: {u.max_numel():,} {u.dtype.name}, {name}"
               for i, (u, name) in enumerate(zip(get_call_arg_uops(call), names))]
  row, source = program.row(), program.source.strip().splitlines()
  at = next((i for i, line in enumerate(source) if "data0" in line), 0)
  sizes = " ".join(f"{k} size {'x'.join(map(str, v))}," for k in ("global", "local") if (v := row[f"{k}_size"]))
  registers = "" if row["registers"] is None else f"{row['registers']} registers, {row['stack']} bytes of stack, "
  return "\n".join([
    f"{reads.role}: {len(found)} of {len(calls)} kernels of a {'prompt' if prompt else 'decode step'}, "
    f"{_kinds(found)}; the first of these:",
    *arguments, "",
    *([text, ""] if (text := transcript.scheduler(of_step)) else []), transcript.text(of_kernel), "",
    f"the source code: {len(source)} lines, {sizes} {registers}from line {at + 1} on", *source[at:at + SOURCE_LINES],
    f".. all of it, with the same -m and --target: python -m tinygrad_llm.kernels --source '{reads.role}'"])

def _kinds(found: list[tuple[UOp, Reads]]) -> str:
  kinds = Counter("+".join(reads.types) or "no weights" for _, reads in found)
  return ", ".join(f"{count} of {kind}" for kind, count in kinds.items())

def _of_role(calls: list[tuple[UOp, Reads]], asked: str) -> list[tuple[UOp, Reads]]:
  """The calls of a role that read the type asked for. InputError if there is none, or if several roles match."""
  role, _, kind = asked.partition(":")
  known = dict.fromkeys(reads.role for _, reads in calls)
  matching = [role] if role in known else fnmatch.filter(known, role)
  if not matching: raise InputError(f"--explain {asked!r:.80}: no kernel has that role; it has {', '.join(known)}")
  if len(matching) > 1: raise InputError(f"--explain {asked!r:.80}: give one of {', '.join(matching)}")
  found = [(call, reads) for call, reads in calls if reads.role == matching[0]]
  of_type = [(call, reads) for call, reads in found if kind in ("", *reads.types)]
  types = dict.fromkeys(t for _, reads in found for t in reads.types)
  if not of_type: raise InputError(f"--explain {asked!r:.80}: no kernel of {matching[0]} reads {kind!r:.20}; its types "
                                   f"are {', '.join(types)}")
  return of_type

def _write_page(args: argparse.Namespace, target: str, step: list[Program], scheduled: Step, card: GPU | CPU | None
                ) -> None:
  from tinygrad_llm.analysis.pages.estimated import estimated_page
  if card is None: raise InputError(f"--html: no times are known for {target}; name a --card")
  title = (f"prompt of {args.prompt}" if args.prompt else "decode step") + f" @ d{args.depth}" * bool(args.depth)
  model = pathlib.Path(args.model).name if args.model else "the bundled model"
  args.html.write_text(estimated_page(f"{model}, {target}", title, step, scheduled.linear, card), encoding="utf-8")
  print(f"written: {args.html}")

def card_of(name: str | None) -> GPU | CPU | None:
  """The card of a name; without a name, the first of the default device's architecture, or None."""
  from tinygrad import Device
  if name is None: return next(iter(cards(Device[Device.DEFAULT].renderer.target)), None)
  if not (found := named(name)):
    raise InputError(f"--card {name!r:.40}: not known; use one of {', '.join(card.name for card in KNOWN)}")
  if isinstance(found[0], CPU) != (Device.DEFAULT == "CPU"):
    kind, wanted = ("processor", "card") if isinstance(found[0], CPU) else ("card", "processor")
    raise InputError(f"--card {name!r:.40}: it is a {kind}, the kernels are for a {wanted}; see --card list")
  return found[0]

def _main() -> None:
  args = _parser().parse_args()
  if args.max_context < 1: raise InputError(f"--max-context {args.max_context}: give at least 1 position")
  if args.html is not None: check_writable("--html", args.html)
  locate(args.model)  # a wrong name fails before anything slow
  if args.card == "list": return print("\n".join(f"{card.name:16s} {card.arch}" for card in KNOWN))
  target = open_target(args.target)
  card = card_of(args.card)
  of_step = args.max_context, args.depth, args.prompt, args.rows
  from tinygrad.device import CompileError
  try:
    if args.explain is not None: return print(explain(args.model, args.explain, *of_step))
    step = programs_of(scheduled := decode_step(args.model, *of_step))
  except (CompileError, RuntimeError) as e:
    if not isinstance(e, CompileError) and "error:" not in str(e): raise  # LLVM raises RuntimeError
    said = [line.strip() for line in str(e).splitlines() if line.strip()] or [type(e).__name__]
    reason = next((line for line in said if "error " in line or "error:" in line), said[0])
    raise InputError(f"--target {target}: its compiler fails ({reason[:200]}); use another target") from e
  if args.source is not None: return print(_sources(step, args.source))
  if args.html is not None: return _write_page(args, target, step, scheduled, card)
  found = report(target, step, card)
  print(json.dumps(found) if args.json else _table(found, args.prompt, card))

def main() -> None: guarded(_main)

if __name__ == "__main__": main()
