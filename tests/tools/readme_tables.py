"""
Generated parts of the README and of docs/: supported models and passes from the code's tables, options from the
commands, figures from bench/results/.

  python tests/tools/readme_tables.py      writes them; test_readme.py and test_pipeline.py check that they are current
"""
import pathlib
import sys
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from collections.abc import Callable
from tests.tools import readme_figures, readme_streams
from tests.tools.doc_pages import PAGES, codes
from tinygrad_llm import patches
from tinygrad_llm.files.hub import ALIASES
from tinygrad_llm.nn.archs import ARCHS
from tinygrad_llm.patches import pipeline
from tinygrad_llm.quants.table import QUANT_TYPES
from tinygrad_llm.text.pretokenizers import PRE_MODELS

ROOT = pathlib.Path(__file__).parents[2]
README, PERFORMANCE, ACCURACY, STREAMS, PASSES = (ROOT / name for name in (
  "README.md", "docs/performance.md", "docs/accuracy.md", "docs/streams.md", "docs/compiler/passes.md"))

def supported() -> str:
  rows = {"architectures": codes(ARCHS), "weight types": " ".join(t.name for t in QUANT_TYPES.values()),
          "tokenizers": f"SentencePiece, and byte pair encoding with {len(PRE_MODELS)} pre-tokenizers",
          "aliases": f"{len(ALIASES)}, such as {codes([*ALIASES][:3])}; `run --list` prints them"}
  return "| | supported ([all](docs/models.md)) |\n|---|---|\n" + "".join(f"| {n} | {v} |\n" for n, v in rows.items())

# {file: {its name between the markers: its text}}
SECTIONS: dict[pathlib.Path, dict[str, Callable[[], str]]] = {
  README: {"supported": supported, "speed": readme_figures.speed},
  ACCURACY: {"numbers": readme_figures.numbers},
  STREAMS: {"speed": readme_streams.speed, "beside": readme_streams.beside},
  PERFORMANCE: {name: getattr(readme_figures, name) for name in
                ("figures", "prompts", "trained", "starts", "experts", "families", "gpu", "report", "ablation")}}

def filled(path: pathlib.Path) -> str:
  """A file's text with its sections current. ValueError if the markers of one are not there once."""
  whole = path.read_text()
  for name, text in SECTIONS[path].items():
    begin, end = (f"<!-- {name}: {at} -->\n" for at in ("begin", "end"))
    (before, rest), (_, after) = whole.split(begin), whole.split(end)
    whole = before + begin + text() + end + after
    assert rest.endswith(end + after), f"{name}: its markers are in the wrong order"
  return whole

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
      text += f"| {link} | {what} | {codes(p.needs)} | {codes(p.provides)} | {codes(p.after)} | {p.targets} |\n"
    rewrites = {p.name: lines for p in pipeline.PASSES if p.phase is phase and (lines := patches.rewrite(p.name))}
    told = "\n".join("\n  ".join((name, *lines)) for name, lines in rewrites.items())
    if told: text += f"\n```\n{told}\n```\n"
  return text

def main() -> None:
  for path in SECTIONS: path.write_text(filled(path))
  for name, text in PAGES.items(): (ROOT / name).write_text(text())
  PASSES.write_text(passes())

if __name__ == "__main__": main()
