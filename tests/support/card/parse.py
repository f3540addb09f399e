"""Parses PTX text into entries with statements. Names, modifiers and operands stay uninterpreted strings."""
import re
from typing import NamedTuple

class PTXError(Exception):
  """Unknown PTX. The message names the entry and the instruction."""

class Parameter(NamedTuple):
  name: str
  type: str      # "u64"
  length: int    # number of elements
  align: int     # bytes

class Statement(NamedTuple):
  """A statement of a body. kind: "{", "}", "label", "directive" or "instruction"."""
  kind: str
  text: str                      # the source text in one line
  guard: str = ""                # "%p1", "!%p1" or ""
  name: str = ""                 # "add", or a label's name
  mods: tuple[str, ...] = ()     # ("rn", "f32")
  operands: tuple[str, ...] = ()

class Variable(NamedTuple):
  """An array in "shared" or "local" memory that an entry declares."""
  space: str
  name: str
  align: int     # bytes
  nbytes: int

class Entry(NamedTuple):
  name: str
  parameters: list[Parameter]
  body: list[Statement]
  threads: int                   # of a block, at most

  @property
  def places(self) -> list[tuple[int, int]]:
    """(offset, bytes) of each parameter in the argument buffer."""
    found, at = list[tuple[int, int]](), 0
    for p in self.parameters:
      found.append((at := aligned(at, p.align), BITS[p.type] // 8 * p.length))
      at += found[-1][1]
    return found

  @property
  def argument_bytes(self) -> int: return sum(self.places[-1]) if self.parameters else 0

def aligned(at: int, align: int) -> int:
  """`at` rounded up to a multiple of `align`."""
  return -(-at // align) * align

class Constant(NamedTuple):
  """A module-level array with its values."""
  name: str
  type: str
  values: list[str]

BITS = {"b8": 8, "u8": 8, "s8": 8, "b16": 16, "u16": 16, "s16": 16, "f16": 16, "bf16": 16, "b32": 32, "u32": 32,
        "s32": 32, "f32": 32, "tf32": 32, "f16x2": 32, "bf16x2": 32, "b64": 64, "u64": 64, "s64": 64, "f64": 64,
        "pred": 1}

def variable(text: str) -> Variable | None:
  """The variable that a directive declares; None if it declares none."""
  m = re.match(r"\.(shared|local)\s*(?:\.align\s+(\d+))?\s*\.(\w+)\s+([%\w$]+)\s*(?:\[(\d+)\])?$", text)
  if m is None: return None
  size = BITS[m[3]] // 8
  return Variable(m[1], m[4], int(m[2] or size), size * int(m[5] or 1))

def operands(text: str) -> tuple[str, ...]:
  """The operands, split at commas outside of brackets."""
  found, depth, last = [""], 0, ""
  for last in text:
    depth += (last in "{[(") - (last in "}])")
    if last == "," and not depth: found.append("")
    else: found[-1] += last
  return tuple(x.strip() for x in found) if text.strip() else ()

def _statement(text: str) -> Statement:
  text = " ".join(text.split())
  if text.startswith("."): return Statement("directive", text)
  guard = re.match(r"@(!?)\s*([%\w$]+)\s+", text)
  rest = text[guard.end():] if guard else text
  if (m := re.match(r"(\w+)((?:\.[\w:]+)*)\s*(.*)$", rest)) is None: raise PTXError(f"`{text}`")
  return Statement("instruction", text, guard[1] + guard[2] if guard else "", m[1],
                   tuple(m[2].split(".")[1:]), operands(m[3]))

def _body(text: str) -> list[Statement]:
  found, at = list[Statement](), 0
  while m := re.compile(r"\s*(?:([{}])|([A-Za-z_$%][\w$]*):(?!:)|([^;{}]*(?:\{[^;{}]*\}[^;{}]*)*);)").match(text, at):
    at = m.end()
    if m[1]: found.append(Statement(m[1], m[1]))
    elif m[2]: found.append(Statement("label", m[2], name=m[2]))
    elif m[3].strip(): found.append(_statement(m[3]))
  if text[at:].strip(): raise PTXError(f"`{' '.join(text[at:].split())[:80]}`")
  return found

def _parameter(text: str) -> Parameter:
  m = re.fullmatch(r"\.param\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s*(?:\.ptr\s*(?:\.\w+\s*)?(?:\.align\s+\d+)?\s*)?"
                   r"([\w$%]+)\s*(?:\[(\d+)\])?", text.strip())
  if m is None or m[2] not in BITS: raise PTXError(f"`{text}`")
  return Parameter(m[3], m[2], int(m[4] or 1), int(m[1] or BITS[m[2]] // 8))

ENTRY = re.compile(r"(?:\.visible\s+)?\.entry\s+([\w$]+)\s*\(([^)]*)\)([^{]*)\{")
CONSTANT = re.compile(r"(?:\.visible\s+)?\.(?:global|const)\s+(?:\.align\s+\d+\s+)?\.(\w+)\s+([\w$]+)\s*\[\d+\]\s*=\s*"
                      r"\{([^}]*)\}\s*;")

def _launch_bounds(text: str) -> int:
  """The threads that `.maxntid` or `.reqntid` allows. PTXError for an unknown directive before an entry's body."""
  left = re.sub(r"\.(maxntid|minnctapersm|reqntid|maxnreg)\s+[\d,\s]+", "", text).strip()
  if left: raise PTXError(f"`{left}`")
  threads = 1
  for x in (m[1].split(",") if (m := re.search(r"\.(?:maxntid|reqntid)\s+([\d,\s]+)", text)) else ["1024"]):
    threads *= int(x)
  return threads

def parse(text: str) -> tuple[list[Entry], list[Constant]]:
  """A module's entries and constants. PTXError for functions, textures and anything else at module level."""
  text = re.sub(r"/\*.*?\*/|//[^\n]*", "", text.rstrip("\0"), flags=re.S)
  entries, constants, rest, last = list[Entry](), list[Constant](), "", 0
  while m := ENTRY.search(text, last):
    depth, at = 1, m.end()
    while depth:
      depth += {"{": 1, "}": -1}.get(text[at], 0)
      at += 1
    try: entries.append(Entry(m[1], [_parameter(x) for x in operands(m[2])], _body(text[m.end():at - 1]),
                              _launch_bounds(m[3])))
    except PTXError as e: raise PTXError(f"{m[1]}: {e}") from e
    rest, last = rest + text[last:m.start()], at
  rest += text[last:]
  for m in CONSTANT.finditer(rest): constants.append(Constant(m[2], m[1], [x.strip() for x in m[3].split(",")]))
  left = re.sub(r"\.(version\s+[\d.]+|target\s+[\w, ]+|address_size\s+64)", "", CONSTANT.sub("", rest)).strip()
  if left or not entries: raise PTXError(f"`{' '.join(left.split())[:80]}`" if left else "no entry")
  return entries, constants
