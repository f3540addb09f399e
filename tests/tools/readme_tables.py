"""
Generates the README's sections of supported features (from the code's tables) and of speed (from bench/results/), and
docs/compiler/passes.md (from the pipeline's table).

  python tests/tools/readme_tables.py      writes them; test_readme.py and test_pipeline.py check that they are current
"""
import pathlib
import sys
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.tools import readme_figures
from tinygrad_llm import patches
from tinygrad_llm.files.hub import ALIASES
from tinygrad_llm.nn.config import ARCHS
from tinygrad_llm.patches import pipeline
from tinygrad_llm.quants.table import QUANT_TYPES
from tinygrad_llm.text.pretokenizers import PRE_MODELS

ROOT = pathlib.Path(__file__).parents[2]
README, PASSES = ROOT / "README.md", ROOT / "docs" / "compiler" / "passes.md"

def _codes(names) -> str: return ", ".join(f"`{name}`" for name in names)

def supported() -> str:
  rows = {"architectures": _codes(ARCHS), "weight types": " ".join(t.name for t in QUANT_TYPES.values()),
          "tokenizers": f"`llama` (SentencePiece), `gemma4`, and `gpt2` (BPE) with pre {_codes(PRE_MODELS)}",
          "aliases": _codes(ALIASES)}
  return "| | supported |\n|---|---|\n" + "".join(f"| {name} | {value} |\n" for name, value in rows.items())

# {section's name in the markers: function that gives its text}
SECTIONS = {"summary": readme_figures.summary, "supported": supported, "figures": readme_figures.figures,
            "prompts": readme_figures.prompts, "gpu": readme_figures.gpu, "trained": readme_figures.trained,
            "experts": readme_figures.experts, "report": readme_figures.report, "ablation": readme_figures.ablation}

def filled(readme: str) -> str:
  """The README's text with current sections. ValueError if a section's markers do not occur exactly once."""
  for name, text in SECTIONS.items():
    begin, end = (f"<!-- {name}: {at} -->\n" for at in ("begin", "end"))
    (before, rest), (_, after) = readme.split(begin), readme.split(end)
    readme = before + begin + text() + end + after
    assert rest.endswith(end + after), f"{name}: its markers are in the wrong order"
  return readme

def passes() -> str:
  """The text of docs/compiler/passes.md: a table for each phase."""
  text = """# Passes

Written by `make readme` from the table in [patches/pipeline.py](../../patches/pipeline.py), which also installs,
switches (`NO_<NAME>=1`) and checks them. A pass is off if nothing that is on provides what it needs. Passes of one
phase are in the order in which they are installed.
"""
  for phase in pipeline.Phase:
    text += f"\n## {phase.name.capitalize()}: {phase.value}\n\n" \
            "| pass | what | needs | provides | after | targets |\n|---|---|---|---|---|---|\n"
    for p in pipeline.PASSES:
      if p.phase is not phase: continue
      what = patches.sentence(p.name) + ("" if p.status is pipeline.Status.MEASURED else f" ({p.status.value})")
      link = f"[{p.name}](../../patches/{p.module.replace('.', '/')}.py)"
      text += f"| {link} | {what} | {_codes(p.needs)} | {_codes(p.provides)} | {_codes(p.after)} | {p.targets} |\n"
    rewrites = {p.name: lines for p in pipeline.PASSES if p.phase is phase and (lines := patches.rewrite(p.name))}
    told = "\n".join("\n  ".join((name, *lines)) for name, lines in rewrites.items())
    if told: text += f"\n```\n{told}\n```\n"
  return text

def main() -> None:
  README.write_text(filled(README.read_text()))
  PASSES.write_text(passes())

if __name__ == "__main__": main()
