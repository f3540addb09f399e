"""The README and the generated pages of docs/ agree with the code and with the measurements."""
import json
import pathlib
import re

import pytest

from tests.tools import doc_pages, readme_figures
from tests.tools.readme_tables import PERFORMANCE, README, ROOT, SECTIONS, filled
from tinygrad_llm.nn.archs import ARCHS

DOCS = [README, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]

def without_code(path: pathlib.Path) -> str:
  """A page without its code blocks."""
  return re.sub(r"^```.*?^```", "", path.read_text(), flags=re.M | re.S)

@pytest.mark.parametrize("path", SECTIONS, ids=lambda path: path.name)
def test_sections_are_current(path: pathlib.Path): assert filled(path) == path.read_text(), "run: make readme"

@pytest.mark.parametrize("name", doc_pages.PAGES)
def test_generated_pages_are_current(name: str):
  assert doc_pages.PAGES[name]() == (ROOT / name).read_text(), "run: make readme"

def test_every_environment_variable_is_documented():
  documented = {name for rows in doc_pages.VARIABLES.values() for name in rows}
  switches = {"NO_Q8_ACTIVATIONS", "NO_MMA_TILES"}  # read by pipeline.is_set, as every NO_<PASS>
  assert doc_pages.read_variables() | switches == (documented - doc_pages.ELSEWHERE) | doc_pages.INTERNAL

def test_every_architecture_has_models(): assert set(doc_pages.MODELS) == set(ARCHS)

def test_readme_is_short(): assert len(README.read_text().splitlines()) <= 150

def test_performance_tables_match_samples():
  """The tables of docs/performance.md, read back, equal the medians of the samples."""
  report = json.loads((readme_figures.RESULTS / readme_figures.DECODE).read_text())
  rows = dict(re.findall(r"^\| ([A-Z0-9_]+) \| ([\d.]+) \| \d+% ", PERFORMANCE.read_text(), re.M))
  assert len(rows) == len(report["models"])
  for model in report["models"]:
    ours = next(r for r in model["rows"] if r["peer"] == "tinygrad_llm")
    ns = sorted(ours["samples_ns"])[len(ours["samples_ns"]) // 2]
    assert abs(float(rows[model["model"].split()[-1]]) - ours["tokens"] * ours["passes"] * 1e9 / ns) < 0.051

@pytest.mark.parametrize("path", SECTIONS, ids=lambda path: path.name)
def test_speed_figures_only_in_command_output(path: pathlib.Path):
  """Only a code block with a command's output may hold figures of speed."""
  text = without_code(path)
  for name in SECTIONS[path]: text = re.sub(rf"<!-- {name}: begin -->.*<!-- {name}: end -->", "", text, flags=re.S)
  assert not re.search(r"\d\s+(tokens a second|tok/s|GB/s)|\ba second: [\d.]+", text)

def test_readme_decode_row_matches_performance_page():
  """The README's row of decode is the row of docs/performance.md."""
  here, llama = re.search(r"\| decode, 1B Llama shape, Q4_K_M \| ([\d.]+) \| ([\d.]+) \|", README.read_text()).groups()
  assert re.search(rf"^\| Q4_K_M \| {here} \| \d+% \| {llama} \|", PERFORMANCE.read_text(), re.M)

@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_resolve(path: pathlib.Path):
  """Links and pictures to files of the repository, and to headings of a page."""
  text = without_code(path)
  for target in re.findall(r"\]\(([^)\s]+)\)|(?:src|srcset)=\"([^\"]+)\"", text):
    file, _, heading = "".join(target).partition("#")
    if file.startswith(("http:", "https:", "mailto:")): continue
    found = (path.parent / file).resolve() if file else path
    assert found.exists(), f"{path.name}: {file}"
    if heading and found.suffix == ".md":
      made = {re.sub(r"[^\w\- ]", "", line.lstrip("# ").lower()).strip().replace(" ", "-")
              for line in found.read_text().splitlines() if line.startswith("#")}
      assert heading in made, f"{path.name}: {file}#{heading}"
