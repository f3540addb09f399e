"""The README agrees with the code and with the measurements."""
import json
import re
from tests.tools import readme_figures
from tests.tools.readme_tables import README, SECTIONS, filled

def test_sections_are_current():
  text = README.read_text()
  assert filled(text) == text, "run: make readme"

def test_tables_are_those_of_the_files():
  """The README's tables, read back, equal the medians of the samples."""
  report = json.loads((readme_figures.RESULTS / readme_figures.DECODE).read_text())
  rows = dict(re.findall(r"^\| ([A-Z0-9_]+) \| ([\d.]+) \| \d+% ", README.read_text(), re.M))
  assert len(rows) == len(report["models"])
  for model in report["models"]:
    ours = next(r for r in model["rows"] if r["peer"] == "tinygrad_llm")
    ns = sorted(ours["samples_ns"])[len(ours["samples_ns"]) // 2]
    assert abs(float(rows[model["model"].split()[-1]]) - ours["tokens"] * ours["passes"] * 1e9 / ns) < 0.051

def test_no_figure_of_speed_is_written_by_hand():
  """Only a code block with a command's output may hold figures of speed."""
  text = re.sub(r"^```.*?^```", "", README.read_text(), flags=re.M | re.S)
  for name in SECTIONS: text = re.sub(rf"<!-- {name}: begin -->.*<!-- {name}: end -->", "", text, flags=re.S)
  assert not re.search(r"\d\s+(tokens a second|tok/s|GB/s)|\ba second: [\d.]+", text)

def test_the_summary_and_the_table_agree():
  text = README.read_text()
  here, llama = re.search(r"generates\s+([\d.]+)\s+tokens a\s+second; llama\.cpp, taking turns with\s+it,\s+([\d.]+)\s",
                          text).groups()
  assert f"| Q4_K_M | {here} |" in text and f"% | {llama} |" in text
