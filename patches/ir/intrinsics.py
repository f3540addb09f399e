"""
Intrinsics: instructions that no operation of tinygrad names, each with its spelling in every language that has it.

A pass writes an intrinsic's text into a CUSTOM node for the renderer. Later passes find the intrinsic by that text: the
cost model asks for its pipe and does not parse C. Any other text is an expression of integer arithmetic.
"""
from __future__ import annotations
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from tinygrad.renderer import Renderer
from tinygrad.renderer.cstyle import ClangRenderer, CUDARenderer, MetalRenderer, OpenCLRenderer

class Language(Enum):
  """The language of a renderer, as far as instructions are spelled differently."""
  CUDA, PTX, METAL, OPENCL, C, C_ARM = (auto() for _ in range(6))

SHUFFLE, DOT, INT = "shuffle", "dot", "int"  # pipes, as in Instruction.pipe

# languages of the renderers that can emit passes' instructions; isa/ptx.py adds PTX
languages: dict[type[Renderer], Language] = {
  CUDARenderer: Language.CUDA, MetalRenderer: Language.METAL, OpenCLRenderer: Language.OPENCL,
  ClangRenderer: Language.C}

def language(ren: Renderer) -> Language|None:
  """The language of a renderer; None if it cannot emit passes' instructions."""
  found = next((language for cls, language in languages.items() if isinstance(ren, cls)), None)
  return Language.C_ARM if found is Language.C and ren.target.arch.split(",")[0] == "arm64" else found

_named: dict[str, Intrinsic] = {}  # by text

@dataclass(frozen=True, eq=False)
class Intrinsic:
  """
  texts: the spelling in each language, with operands {0}, {1}, ..; in PTX it is a line, and {d} is the result.

  since: the compute capability, times ten, of NVIDIA's first cards that have it. ValueError if a text is another
  intrinsic's.
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
    """The spelling for a renderer; None if its language or its card does not have the instruction."""
    if (spoken := language(ren)) in (Language.CUDA, Language.PTX):
      arch = re.match(r"sm_(\d+)", ren.target.arch)
      if arch is None or int(arch[1]) < self.since: return None
    return None if spoken is None else self.texts.get(spoken)

def named(text: object) -> Intrinsic|None:
  """The intrinsic that a text spells; None if it spells none."""
  return _named.get(str(text))

def called(text: str) -> str:
  """A readable name of a text: the intrinsic's name, or the name of the function that the text calls."""
  return text.split("(")[0] if (found := named(text)) is None else found.name.replace(" ", "_")

def pipe(text: object) -> str:
  """The pipe that executes a text."""
  return INT if (found := named(text)) is None else found.pipe
