"""
Prose check: counts sentences that are hard to read, by room; a count may only fall.

  python tests/tools/prose.py                  fails if a room has more than tests/data/prose.json allows
  python tests/tools/prose.py --show ROOM ..   the sentences, with file and line
  python tests/tools/prose.py --accept         writes today's counts, where they are lower

A room is a folder. Its prose is docstrings, comments and Markdown, without code blocks, tables and pseudocode.
"""
from __future__ import annotations
import pathlib
import sys
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
import argparse, ast, io, json, re, tokenize
from collections import Counter
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).resolve().parents[2]
ALLOWED = ROOT / "tests" / "data" / "prose.json"
GENERATED = ("docs/compiler/passes.md", "docs/models.md", "docs/cli.md", "docs/env.md")
WORDS, COLUMNS = 30, 120
SKIPPED = ("```", "|", "<!--", "$ ", ">>>", "python ", "make ", "pytest ")  # lines that begin so are no prose

# {kind: what matches a sentence of it}
KINDS = {"begins with Of": re.compile(r"Of "),
         "those of": re.compile(r".*?\b(those|that) of (?!course)", re.S),
         "clause as subject": re.compile(r"(What|Whatever|Who|Whoever|Whom|Whose) (?!.*\?$)", re.S)}

DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)

def _docstrings(tree: ast.AST) -> Iterator[tuple[int, str]]:
  for node in ast.walk(tree):
    if isinstance(node, DOCUMENTED) and (text := ast.get_docstring(node, clean=False)) is not None:
      yield node.body[0].lineno, text

def _comments(source: str) -> Iterator[tuple[int, str]]:
  """Comments; neighbouring lines that hold nothing else are one text."""
  start, last, lines = 0, 0, list[str]()
  for token in tokenize.generate_tokens(io.StringIO(source).readline):
    if token.type != tokenize.COMMENT: continue
    text, alone = token.string.lstrip("#! ").strip(), token.line.lstrip().startswith("#")
    if text.startswith(("type:", "noqa", "fmt:", "***")): continue
    if lines and alone and token.start[0] == last + 1: lines.append(text)
    else:
      if lines: yield start, "\n".join(lines)
      start, lines = token.start[0], [text]
    last = token.start[0] if alone else -1
  if lines: yield start, "\n".join(lines)

def _paragraphs(text: str) -> Iterator[tuple[int, str]]:
  """Paragraphs of prose, each with its first line's number from 0: a list's items apart, code and tables left out."""
  start, lines, fenced, pseudocode = 0, list[str](), False, False
  for i, line in enumerate([*text.splitlines(), ""]):
    bare = line.strip()
    if bare.startswith("```"): fenced = not fenced
    if re.match(r"Rewrite:", bare): pseudocode = True
    elif re.match(r"(Why|How|Numbers|Upstream|Source):", bare) or not bare: pseudocode = False
    skipped = fenced or pseudocode or bare.startswith(SKIPPED) or "-->" in bare
    begins = re.match(r"([-*] |\d+\. |#|[A-Z]\w+: )", bare)
    if (skipped or not bare or begins) and lines:
      yield start, " ".join(lines)
      lines = []
    if bare and not skipped:
      if not lines: start = i
      lines.append(bare)

def sentences(text: str) -> Iterator[tuple[int, str]]:
  """Each sentence of a text with its paragraph's line from 0. A label, as in `Why: ..`, is no part of it."""
  for line, paragraph in _paragraphs(text):
    paragraph = re.sub(r"^([-*] |\d+\. |#+ )?(\*\*[^*]+\*\*\.? ?|[A-Z]\w+: )?", "", paragraph)
    paragraph = re.sub(r"\]\([^)]*\)", "]", paragraph)
    yield from ((line, s) for s in re.split(r"(?<=[.!?:])\s+(?=[A-Z`\"(])", paragraph) if s)

def texts(path: pathlib.Path) -> Iterator[tuple[int, str]]:
  """The prose of a file, with line numbers from 1."""
  source = path.read_text()
  if path.suffix == ".md": yield 1, source
  else:
    yield from _docstrings(ast.parse(source))
    yield from _comments(source)

def faults(path: pathlib.Path) -> Iterator[tuple[str, int, str]]:
  """(Kind, line, sentence) of all that is hard to read in a file."""
  for first, text in texts(path):
    for line, sentence in sentences(text):
      for kind, pattern in KINDS.items():
        if pattern.match(sentence): yield kind, first + line, sentence
      if len(re.findall(r"[A-Za-z]\S*", sentence)) > WORDS: yield f"more than {WORDS} words", first + line, sentence
  if path.suffix == ".md":
    for i, line in enumerate(path.read_text().splitlines(), 1):
      if len(line) > COLUMNS and "|" not in line and "](" not in line: yield f"wider than {COLUMNS}", i, line

def files() -> Iterator[pathlib.Path]:
  for pattern in ("*.py", "*.md"):
    for path in sorted(ROOT.rglob(pattern)):
      name = path.relative_to(ROOT).as_posix()
      if name.startswith((".", "build/", "dist/", "tinygrad_llm/patches/", "bench/results/")) or "/." in name: continue
      if name not in GENERATED: yield path

def room(path: pathlib.Path) -> str: return path.parent.relative_to(ROOT).as_posix()

def count() -> dict[str, dict[str, int]]:
  """{room: {kind: how many}} of today."""
  counted = Counter((room(path), kind) for path in files() for kind, _, _ in faults(path))
  rooms = sorted({name for name, _ in counted})
  return {name: {kind: n for (where, kind), n in sorted(counted.items()) if where == name} for name in rooms}

def main() -> int:
  parser = argparse.ArgumentParser(description="Count sentences that are hard to read, by room.")
  parser.add_argument("--accept", action="store_true", help="write today's counts; none may be higher than before")
  parser.add_argument("--show", nargs="+", metavar="ROOM", help="print the sentences of these rooms")
  args = parser.parse_args()
  if args.show:
    for path in files():
      if room(path) in args.show or path.relative_to(ROOT).as_posix() in args.show:
        for kind, line, sentence in faults(path): print(f"{path.relative_to(ROOT)}:{line}: {kind}: {sentence}")
    return 0
  today, allowed = count(), json.loads(ALLOWED.read_text()) if ALLOWED.exists() else None
  risen = [(name, kind, n, allowed.get(name, {}).get(kind, 0)) for name, kinds in today.items() for kind, n in
           kinds.items() if n > allowed.get(name, {}).get(kind, 0)] if allowed is not None else []
  for name, kind, n, most in risen:
    print(f"{name}: {kind}: {n}, allowed {most}; python tests/tools/prose.py --show {name}", file=sys.stderr)
  if args.accept and not risen: ALLOWED.write_text(json.dumps(today, indent=1) + "\n")
  total = Counter[str]()
  for kinds in today.values(): total.update(kinds)
  print("prose: " + ", ".join(f"{kind} {n}" for kind, n in sorted(total.items())))
  return 1 if risen else 0

if __name__ == "__main__": sys.exit(main())
