"""
The instructions of a cubin's machine code by pipe, read from the output of `cuobjdump --dump-sass`.

Compilers unroll loops, so the machine code's trip counts are unknown. They follow from the loads: the linear program's
memory loads, less the loads outside of loops, are attributed to the innermost loop with most loads.
"""
from __future__ import annotations
import re
from collections import Counter
from collections.abc import Sequence

PIPES = {"float": r"F(FMA|ADD|MUL|MNMX|SETP|SEL|SET|CHK|SWZADD)", "half": r"H(ADD2|FMA2|MUL2|MNMX2|SETP2|SET2)",
         "sfu": r"MUFU", "convert": r"(I2F|F2I|F2F|I2FP|F2FP)", "dot": r"(IDP|IDP4A)", "shuffle": r"SHFL",
         "tensor": r"[HIB]MMA|[HI]GMMA", "load": r"LDG?", "store": r"STG?", "shared": r"(LDS|STS|LDSM)",
         "barrier": r"BAR", "branch": r"(BRA|EXIT|BSSY|BSYNC|RET|CALL|NOP|WARPSYNC|BREAK)"}
PRODUCTS = 2048  # products that a matrix instruction accumulates, 16 x 8 x 16
_LINE = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?([A-Z0-9]+)([^;]*);")

def pipe(opcode: str) -> str:
  """The pipe of a machine instruction; all others, such as integer arithmetic and moves, are "int"."""
  return next((name for name, pattern in PIPES.items() if re.fullmatch(pattern, opcode)), "int")

def executed(text: str, loads: int, outer: int = 1) -> Counter[str]|None:
  """
  A thread's instructions by pipe; None if the loops of the code are not understood.

  loads: memory loads that a thread executes; outer: how often it enters its innermost loops.
  """
  code = [(int(at, 16), opcode, rest) for at, opcode, rest in _LINE.findall(text)]
  while code and (code[-1][1] == "NOP" or _jumps_to(code[-1]) == code[-1][0]): code.pop()  # padding after the end
  loops = [(target, at) for at, *rest in code if (target := _jumps_to((at, *rest))) is not None and target < at]
  inner = [loop for loop in loops if not any(other != loop and _inside(other[0], loop) for other in loops)]
  static = {loop: sum(pipe(opcode) == "load" for at, opcode, _ in code if _inside(at, loop)) for loop in inner}
  main = max(inner, key=lambda loop: static[loop], default=None)
  outside = sum(pipe(opcode) == "load" for at, opcode, _ in code if not any(_inside(at, loop) for loop in loops))
  if main is not None and not static[main]: return None
  trips = (loads - outside) / static[main] if main is not None else 1.0
  found: Counter[str] = Counter()
  for at, opcode, _ in code:
    if not any(_inside(at, loop) for loop in loops): times = 1.0
    elif main is not None and _inside(at, main): times = trips
    else: times = 0.0 if any(_inside(at, loop) for loop in inner) else outer  # remainder loops of unrolling: 0 times
    kind = pipe(opcode)
    found[kind] += times * (PRODUCTS if kind == "tensor" else 1)  # type: ignore[assignment]
  return found

def _inside(at: int, loop: Sequence[int]) -> bool: return loop[0] <= at <= loop[1]

def _jumps_to(instruction: tuple[int, str, str]) -> int|None:
  target = re.search(r"0x([0-9a-f]+)", instruction[2]) if instruction[1] == "BRA" else None
  return int(target[1], 16) if target else None
