"""
What in the README is not written by hand: what is supported, from the code's own tables, and all figures of speed, from
bench/results/.

  python tests/tools/readme_tables.py      writes them into the README; test_readme.py checks that they are current
"""
import pathlib
import readme_figures
from tinygrad_llm.nn.config import ARCHS
from tinygrad_llm.files.hub import ALIASES
from tinygrad_llm.text.pretokenizers import PRE_MODELS
from tinygrad_llm.files.quant import QUANT_TYPES

README = pathlib.Path(__file__).parents[2] / "README.md"

def _codes(names) -> str: return ", ".join(f"`{name}`" for name in names)

def supported() -> str:
  rows = {"architectures": _codes(ARCHS), "weight types": " ".join(t.name for t in QUANT_TYPES.values()),
          "tokenizers": f"`llama` (SentencePiece), `gemma4`, and `gpt2` (BPE) with pre {_codes(PRE_MODELS)}",
          "aliases": _codes(ALIASES)}
  return "| | supported |\n|---|---|\n" + "".join(f"| {name} | {value} |\n" for name, value in rows.items())

# {its name between the markers: its text}
SECTIONS = {"summary": readme_figures.summary, "supported": supported, "figures": readme_figures.figures,
            "prompts": readme_figures.prompts, "trained": readme_figures.trained,
            "experts": readme_figures.experts, "report": readme_figures.report, "ablation": readme_figures.ablation}

def filled(readme: str) -> str:
  """The README's text with its sections current. ValueError if the markers of one are not there once."""
  for name, text in SECTIONS.items():
    begin, end = (f"<!-- {name}: {at} -->\n" for at in ("begin", "end"))
    (before, rest), (_, after) = readme.split(begin), readme.split(end)
    readme = before + begin + text() + end + after
    assert rest.endswith(end + after), f"{name}: its markers are in the wrong order"
  return readme

if __name__ == "__main__": README.write_text(filled(README.read_text()))
