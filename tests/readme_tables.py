"""
The README's table of what is supported, made from the code's own tables.

  python tests/readme_tables.py      writes it into the README; test_readme.py checks that it is current
"""
import pathlib
from tinygrad_llm.config import ARCHS
from tinygrad_llm.hub import ALIASES
from tinygrad_llm.pretokenizers import PRE_MODELS
from tinygrad_llm.quant import QUANT_TYPES

README = pathlib.Path(__file__).parent.parent / "README.md"
BEGIN, END = "<!-- supported: begin -->\n", "<!-- supported: end -->\n"

def _codes(names) -> str: return ", ".join(f"`{name}`" for name in names)

def table() -> str:
  rows = {"architectures": _codes(ARCHS), "weight types": " ".join(t.name for t in QUANT_TYPES.values()),
          "tokenizers": f"`llama` (SentencePiece), `gemma4`, and `gpt2` (BPE) with pre {_codes(PRE_MODELS)}",
          "aliases": _codes(ALIASES)}
  return "| | supported |\n|---|---|\n" + "".join(f"| {name} | {value} |\n" for name, value in rows.items())

def filled(readme: str) -> str:
  """The README's text with a current table."""
  before, rest = readme.split(BEGIN)
  return before + BEGIN + table() + END + rest.split(END)[1]

if __name__ == "__main__": README.write_text(filled(README.read_text()))
