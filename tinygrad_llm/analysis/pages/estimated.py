"""The page of a step that did not run: the cost model's estimate for each kernel."""
from __future__ import annotations
from collections.abc import Sequence
from tinygrad import UOp
from tinygrad.uop.ops import Ops
from tinygrad_llm.analysis.pages.codes import codes
from tinygrad_llm.analysis.pages.timeline import DEVICE, Bar, Timeline, page
from tinygrad_llm.analysis.programs import Program
from tinygrad_llm.patches.search.cost.cost_model import Estimate
from tinygrad_llm.patches.search.cost.hardware import CPU, GPU

NOTE = "Nothing ran: the kernels of one step, end to end, each as long as the cost model estimates for {card}."

def estimated_page(heading: str, title: str, step: Sequence[Program], scheduled: UOp, card: GPU | CPU) -> str:
  """The page as HTML. heading: model and target; title: of the step; scheduled: its schedule, not compiled."""
  calls = [call for call in scheduled.src if call.src[0].op is Ops.SINK]
  found = codes((program.call, call) for program, call in zip(step, calls, strict=True))
  places = {kernel: i for i, kernel in enumerate(found)}
  start, bars, guesses = 0.0, list[Bar](), dict[tuple[UOp, str], Estimate]()
  for program in step:
    key = program.program, str(program.variables)
    if key not in guesses: guesses[key] = program.estimate(card)
    guess = guesses[key]
    bars.append(Bar(DEVICE, program.part, program.name, start, guess.us, figures(program, guess),
                    places[program.call.src[0]]))
    start += guess.us
  return page(heading, [Timeline(title, False, NOTE.format(card=card.name), bars)], list(found.values()))

def figures(program: Program, guess: Estimate) -> dict[str, str]:
  sizes = program.info.launch_dims(program.variables)
  parts = ", ".join(f"{name} {us:.2f}" for name, us in guess.parts.items())
  return {"estimate": f"{guess.us:.2f} us, bound by {guess.bound} ({parts})", "role": program.role,
          "bytes": f"{program.nbytes:,}",
          **{f"{name} size": " x ".join(map(str, size)) for name, size in zip(("global", "local"), sizes) if size},
          "opts": " ".join(f"{opt.op.name}:{opt.axis}:{opt.arg}" for opt in program.opts) or "none"}
