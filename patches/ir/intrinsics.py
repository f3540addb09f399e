"""
Intrinsics: instructions that no operation of tinygrad's names, each with its spelling in every language that has it.

A pass makes a CUSTOM of an intrinsic's text for the renderer; who meets that text finds the intrinsic by it: the cost
model asks for its pipe and reads no C. A text that is no intrinsic's is an expression, arithmetic on integers.
"""
from __future__ import annotations
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from tinygrad.renderer import Renderer
from tinygrad.renderer.cstyle import ClangRenderer, CUDARenderer, MetalRenderer, OpenCLRenderer

class Language(Enum):
  """What a renderer writes, as far as instructions have other names there."""
  CUDA, PTX, METAL, OPENCL, C, C_ARM = (auto() for _ in range(6))

SHUFFLE, DOT, INT = "shuffle", "dot", "int"  # pipes, as Instruction.pipe has them

# of renderers that have a place for instructions of passes; isa/ptx.py makes another one
languages: dict[type[Renderer], Language] = {
  CUDARenderer: Language.CUDA, MetalRenderer: Language.METAL, OpenCLRenderer: Language.OPENCL,
  ClangRenderer: Language.C}

def language(ren: Renderer) -> Language|None:
  """That of a renderer; None if it has no place for instructions of passes."""
  found = next((language for cls, language in languages.items() if isinstance(ren, cls)), None)
  return Language.C_ARM if found is Language.C and ren.target.arch.split(",")[0] == "arm64" else found

_named: dict[str, Intrinsic] = {}  # by text

@dataclass(frozen=True, eq=False)
class Intrinsic:
  """
  texts: {0}, {1}, .. are its operands; in PTX it is a line, and {d} its result. since: the compute capability, times
  ten, of NVIDIA's first cards that have it. ValueError if a text is another intrinsic's.
  """
  name: str
  pipe: str
  texts: Mapping[Language, str]
  since: int = 50

  def __post_init__(self) -> None:
    for text in self.texts.values():
      known = _named.setdefault(text, self)
      if known is not self: raise ValueError(f"{text}: {known.name}, and {self.name}")

  def text(self, ren: Renderer) -> str|None:
    """As a renderer spells it; None if its language or its card has none."""
    if (spoken := language(ren)) in (Language.CUDA, Language.PTX):
      arch = re.match(r"sm_(\d+)", ren.target.arch)
      if arch is None or int(arch[1]) < self.since: return None
    return None if spoken is None else self.texts.get(spoken)

def named(text: object) -> Intrinsic|None:
  """The intrinsic that a text spells."""
  return _named.get(str(text))

def called(text: str) -> str:
  """How a reader knows what a text says: an intrinsic's name, or the function that it calls."""
  return text.split("(")[0] if (found := named(text)) is None else found.name.replace(" ", "_")

def pipe(text: object) -> str:
  """The pipe that executes what a text says."""
  return INT if (found := named(text)) is None else found.pipe
