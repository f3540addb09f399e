"""A profile as text: a table for people, or rows for programs."""
from __future__ import annotations
import csv, io, json
from typing import Any
from tinygrad_llm.analysis.profile import Kernel, Profile, Row

class Printer:
  """Prints profiles on stdout as they come, as md, json, jsonl or csv. For json it prints one object at the end."""
  def __init__(self, kind: str): self.kind, self._done = kind, list[dict[str, Any]]()

  def add(self, title: str, unit: str, test: dict[str, Any], profile: Profile) -> None:
    """Prints a profile. unit: see markdown(); test: the test's fields, for all formats but md."""
    if self.kind == "md":
      peak = f"{'read' if profile.in_step else 'copy'} bandwidth {profile.peak:.1f} GB/s"
      print(f"{title}, {peak}\n\n{markdown(profile, unit)}\n", flush=True)
    elif self.kind == "jsonl": print(json.dumps(test | fields(profile)), flush=True)
    elif self.kind == "json": self._done.append(test | fields(profile))
    else:
      of_test = {name: value for name, value in test.items() if not isinstance(value, list)}
      rows = [of_test | row_fields(row, profile) for row in profile.rows]
      if not self._done: print(",".join(rows[0]))
      self._done += rows
      for row in rows: print(_csv(row), flush=True)

  def end(self, line: str) -> None:
    """Ends the output. line: the last line of md."""
    if self.kind == "json": print(json.dumps({"profiles": self._done}, indent=2))
    if self.kind == "md": print(line)

def _csv(row: dict[str, Any]) -> str:
  csv.writer(out := io.StringIO(), quoting=csv.QUOTE_ALL, lineterminator="").writerow(
    ["" if value is None else value for value in row.values()])
  return out.getvalue()

COLUMNS = {"part": -30, "kernels": 7, "us": 10, "share": 6, "MB": 9, "GB/s": 7, "of peak": 7}

def markdown(profile: Profile, unit: str) -> str:
  """A profile as a Markdown table. unit: a step's unit, token or prompt. MB: the least that kernels read and write."""
  names = {"us": f"us / {unit}"}
  widths = {name: max(abs(width), len(names.get(name, name))) * (1 if width > 0 else -1)
            for name, width in COLUMNS.items()}
  widths["part"] = -max(len("gap between steps"), *(len(row.name) for row in profile.rows))
  def line(cells: dict[str, str]) -> str:
    return "|" + "|".join(f" {cells.get(c, ''):{'<' if w < 0 else '>'}{abs(w)}} " for c, w in widths.items()) + "|"
  count, nbytes = len(profile.kernels), sum(row.bytes for row in profile.rows)
  sum_row = {"part": "sum", "kernels": str(count), "us": f"{profile.total:.1f}", "share": "100.0%",
             "MB": f"{nbytes / 1e6:.2f}"} | _speed(nbytes / profile.total / 1e3, profile.peak)
  step = {"part": "step as measured", "us": f"{profile.measured:.1f}",
          "share": f"{profile.measured / profile.total:.1%}"}
  gap = {"part": "gap between steps", "us": f"{profile.gap:.1f}", "share": f"{profile.gap / profile.total:.1%}"}
  return "\n".join([
    line({c: names.get(c, c) for c in widths}),
    "|" + "|".join(f" {'-' * (abs(w) - 1)}{'-' if w < 0 else ':'} " for w in widths.values()) + "|",
    *(line(_cells(row, profile)) for row in profile.rows), line(sum_row), line(step), line(gap)])

def _cells(row: Row, profile: Profile) -> dict[str, str]:
  cells = {"part": row.name, "us": f"{row.us:.1f}", "share": f"{row.us / profile.total:.1%}"}
  if row.kernels: cells |= {"kernels": str(len(row.kernels)), "MB": f"{row.bytes / 1e6:.2f}"}
  return cells | ({} if row.gbs is None else _speed(row.gbs, profile.peak))

def _speed(gbs: float, peak: float) -> dict[str, str]: return {"GB/s": f"{gbs:.2f}", "of peak": f"{gbs / peak:.0%}"}

def fields(profile: Profile) -> dict[str, Any]:
  """
  A profile for JSON. us and bytes are per step.

  - timed: "in the step" or "alone", see analysis/profile.py.
  - measured_us, sum_us: of the step without profiling, and of the rows.
  - gap_us: from the step's last kernel to the next step's first, a part of the host's row.
  - peak_gbs: Profile.peak.
  - rows: [{name, kernels (how many), us, share (of the sum), bytes, gbs, peak_share, launches}], the host last.
  - launches: [{name, role, count, us, bytes, global_size, local_size, opts}]; none for the host. Launches that look
    the same are one entry, with the us and bytes of all `count`.
  """
  return {"timed": "in the step" if profile.in_step else "alone", "measured_us": profile.measured,
          "sum_us": profile.total, "gap_us": profile.gap, "peak_gbs": profile.peak,
          "rows": [row_fields(row, profile) | {"launches": launches(row.kernels)} for row in profile.rows]}

def row_fields(row: Row, profile: Profile) -> dict[str, Any]:
  return {"name": row.name, "kernels": len(row.kernels), "us": row.us, "share": row.us / profile.total,
          "bytes": row.bytes, "gbs": row.gbs, "peak_share": None if row.gbs is None else row.gbs / profile.peak}

def launches(kernels: list[Kernel]) -> list[dict[str, Any]]:
  alike: dict[tuple, list[Kernel]] = {}
  for k in kernels: alike.setdefault((k.role, k.name, k.source, str(k.global_size), str(k.local_size)), []).append(k)
  return [{"name": k.name, "role": k.role, "count": len(same), "us": sum(x.us for x in same),
           "bytes": sum(x.bytes for x in same), "global_size": k.global_size, "local_size": k.local_size,
           "opts": k.opts} for same in alike.values() for k in same[:1]]
