"""
Intrinsics: the texts by which passes name an instruction (the arg of a CUSTOM), and the pipe that executes each.

A pass registers a text where it spells it, for each renderer; the cost model (search/cost/instructions.py) asks for the
pipe and reads no C. A text that nobody registered is arithmetic on integers.
"""
from __future__ import annotations

SHUFFLE, DOT, INT = "shuffle", "dot", "int"  # pipes, as Instruction.pipe has them

_pipes: dict[str, str] = {}

def register(text: str, pipe: str) -> str:
  """Says which pipe executes what a text names; returns the text. ValueError if it has another one already."""
  if _pipes.setdefault(text, pipe) != pipe: raise ValueError(f"{text}: {_pipes[text]}, and {pipe}")
  return text

def pipe(text: object) -> str:
  """The pipe of a text."""
  return _pipes.get(str(text), INT)
