"""
Translates PTX to C and compiles it with the given C compiler to a library that block.c runs.

  python -m card.translate clang ..its options kernel.ptx kernel.so

Each entry becomes a C function of a thread and its arguments, each register an unsigned integer of its width, each
instruction a statement. instructions.py and kernel.h define the arithmetic. This file handles registers and their
scopes, addresses, loads and stores, conversions, and instructions at which threads synchronise ("meetings").
"""
import os
import re
import sys
from collections import Counter

from tests.support.card.instructions import (BARRIERS, COMPARE_FLOAT, COMPARE_UNSIGNED, EXCHANGE, NOTHING, ROUNDING,
  SPECIAL, TABLE)
from tests.support.card.parse import BITS, Constant, Entry, PTXError, Statement, aligned, parse, variable

FLOATS = ("f16", "bf16", "f32", "f64")
PAIRS = {"f16x2": "f16", "bf16x2": "bf16"}
SPACES = ("param", "global", "const", "shared", "local")

def c_type(t: str) -> str:
  """The C type of a PTX type: "u32", "float". Halves are computed as floats; predicates are bytes."""
  return {"pred": "u8", "f16": "float", "bf16": "float", "f32": "float", "f64": "double", "tf32": "u32"}.get(
    t, t.replace("b", "u"))

def bits_type(t: str) -> str:
  return "u8" if t == "pred" else f"u{BITS[t]}"

def number(bits: str, t: str) -> str:
  """C: bits interpreted as a number of type t."""
  return f"{t}_of({bits})" if t in FLOATS else f"({c_type(t)})({bits})"

def stored(value: str, t: str) -> str:
  """C: the bits of a number of type t."""
  return f"bits_{t}({value})" if t in FLOATS else f"!!({value})" if t == "pred" else f"({c_type(t)})({value})"

def c_name(name: str) -> str: return re.sub(r"\W", "_", name)

class Function:
  """Translates an entry to C. PTXError with the instruction if it has no translation."""
  def __init__(self, entry: Entry, constants: dict[str, Constant]):
    self.entry, self.constants = entry, constants
    self.places = entry.places
    self.parameters = {p.name: at for p, (at, _) in zip(entry.parameters, self.places)}
    self.declared, self.meets = Counter[str](), False  # bytes of each space; whether threads synchronise
    self.scopes = [dict[str, tuple[str, str]]()]  # name -> C's name and type, innermost last
    self.ranges = dict[str, str]()                # "%r" of %r<5> -> type
    self.used = dict[str, str]()                  # C's name -> type
    self.symbols = dict[str, tuple[str, int]]()   # a variable -> space and address
    self.sites, self.lines = list[str](), list[str]()
    for s in entry.body:
      try: self.lines.append(self.statement(s))
      except PTXError as e: raise PTXError(f"{entry.name}: `{s.text}`: {e}") from e
      except (KeyError, IndexError, ValueError) as e: raise PTXError(f"{entry.name}: `{s.text}`: {e!r}") from e

  # *** statements
  def statement(self, s: Statement) -> str:
    if s.kind == "{": self.scopes.append({})
    if s.kind == "}": self.scopes.pop()
    if s.kind in "{}": return s.kind
    if s.kind == "label": return f"L{c_name(s.name)}: ;"
    if s.kind == "directive": return self.directive(s.text)
    code = self.instruction(s)
    return f"if ({'!' * (s.guard[0] == '!')}{self.register(s.guard.lstrip('!'))[0]}) {{ {code} }}" if s.guard else code

  def directive(self, text: str) -> str:
    if m := re.match(r"\.reg\s*\.(\w+)\s+(.*)$", text):
      for name in (x.strip() for x in m[2].split(",")):
        if r := re.match(r"([%\w$]+)<\d+>$", name): self.ranges[r[1]] = m[1]
        else: self.scopes[-1][name] = f"v{len(self.used)}_{c_name(name)}", m[1]
        if not r: self.used[self.scopes[-1][name][0]] = m[1]
      return ""
    if (v := variable(text)) is not None:
      self.symbols[v.name] = v.space, (at := aligned(self.declared[v.space], v.align))
      self.declared[v.space] = at + v.nbytes
      return ""
    if text.startswith((".pragma", ".loc", ".file")): return ""
    raise PTXError("a directive that the simulator does not support")

  # *** operands
  def register(self, name: str) -> tuple[str, str]:
    for scope in reversed(self.scopes):
      if name in scope: return scope[name]
    for cut in range(len(name) - 1, 0, -1):
      if name[:cut] in self.ranges and name[cut:].isdigit():
        self.used[c := c_name("r" + name)] = self.ranges[name[:cut]]
        return c, self.ranges[name[:cut]]
    raise PTXError(f"no register {name}")

  def bits(self, operand: str, bits: int = 64) -> str:
    """C: the bits of an operand: a register, a number or a variable's address."""
    if operand in SPECIAL: return SPECIAL[operand]
    if m := re.fullmatch(r"0[fFdD]([0-9a-fA-F]+)", operand): return f"0x{m[1]}ull"
    if re.fullmatch(r"-?(0[xX][0-9a-fA-F]+|\d+)U?", operand):
      return f"({operand.rstrip('U')}{'ll' if operand[0] == '-' else 'ull'})"
    if operand.startswith("!"): return f"!{self.register(operand[1:])[0]}"
    operand = operand.removesuffix("[0]")  # an array's first element
    if re.fullmatch(r"[%\w$]+\s*\+\s*\d+", operand) or operand in self.symbols or operand in self.constants:
      return self.address(operand)[0]
    return self.register(operand)[0]

  def value(self, operand: str, t: str) -> str: return number(self.bits(operand), t)

  def assign(self, operand: str, value: str) -> str:
    """C: assigns bits, zero-extended, to a register."""
    return f"{self.register(operand)[0]} = {value};" if operand != "_" else ""

  def address(self, text: str) -> tuple[str, str]:
    """C: the address within brackets, and the state space that its variable implies, or ""."""
    if (m := re.fullmatch(r"([%\w$]+)\s*(?:\+\s*(-?\w+))?", text.strip())) is None: raise PTXError("no address")
    base, offset = m[1], m[2] or "0"
    if base in self.parameters: return f"({self.parameters[base]} + {offset})", "param"
    if base in self.symbols: return f"({self.symbols[base][1]}ull + {offset})", self.symbols[base][0]
    if base in self.constants: return f"((u64)({c_name('K' + base)}) + {offset})", "const"
    if re.fullmatch(r"\d+|0x[\da-fA-F]+", base): return f"({base}ull + {offset})", ""
    return f"((u64){self.register(base)[0]} + (s64)({offset}))", ""

  def site(self, s: Statement) -> int:
    """The number of an instruction, for reports."""
    self.sites.append(s.text)
    return len(self.sites) - 1

  # *** instructions
  def instruction(self, s: Statement) -> str:
    form = ".".join((s.name, *s.mods))
    if s.name in ("ld", "ldu", "st"): return self.memory(s)
    if s.name == "mov" and "{" in s.text: return self.vector_move(s)
    if (row := TABLE.get(form)) is not None: return self.computed(s, row.c, row.types)
    if s.name == "cvt": return self.convert(s)
    if s.name == "cvta": return self.generic(s)
    if s.name == "setp": return self.compare(s)
    if s.name == "set": return self.compare_to_number(s)
    if s.name == "bra": return f"goto L{c_name(s.operands[0])};"
    if s.name in ("ret", "exit"): return "return;"
    if s.name == "trap": return f"t->fault(t, TRAP, 0, 0, {self.site(s)});"
    if s.name in NOTHING: return ""
    if form in BARRIERS and s.operands == ("0",): return self.meeting(s, "BARRIER", ())
    if form == "bar.warp.sync": return self.meeting(s, "WARP_SYNC", (), s.operands[0])
    if form in EXCHANGE: return self.exchanged(s, EXCHANGE[form])
    if s.name == "mma": return self.multiply(s)
    if s.name == "ldmatrix": return self.matrices(s)
    raise PTXError("an instruction that the simulator does not support")

  def computed(self, s: Statement, c: str, types: tuple[str, ...]) -> str:
    """C: an instruction by its row of the table."""
    last = s.mods[-1]
    if last in PAIRS:
      half = PAIRS[last]
      parts = [self._expression(c, half, [f"(u16)({self.bits(o)} >> {shift})" for o in s.operands[1:]], (), s.mods)
               for shift in (0, 16)]
      return f"{{ u32 low_, high_; {parts[0]} low_ = d_; }} {parts[1]} high_ = d_; }} " \
             f"{self.assign(s.operands[0], 'low_ | high_ << 16')} }}"
    code = self._expression(c, last, [self.bits(o) for o in s.operands[1:]], types, s.mods)
    return f"{code} {self.assign(s.operands[0], 'd_')} }}"

  def _expression(self, c: str, t: str, operands: list[str], types: tuple[str, ...], mods: tuple[str, ...]) -> str:
    """C: an open block that defines a, b, .. as numbers, then d_, the bits of the result."""
    width = BITS[t]
    named = {"T": t, "B": "pred" if t == "pred" else f"b{width}", "W": {"s": "wide_s", "u": "wide_u"}.get(t[0], "") +
             str(2 * width)}
    types = types or ("T",) * (len(operands) + 1)
    types = (*types, *(types[-1:] * (len(operands) + 1 - len(types))))
    flush, wide = "ftz" in mods and t == "f32", f"{'' if t[0] == 's' else 'unsigned '}__int128" if width == 64 else \
      f"{t[0]}{2 * width}"
    code = "{"
    for name, operand, kind in zip("abce", operands, types[1:]):
      kind = named.get(kind, kind)
      if kind.startswith("wide"): ctype, value = wide, f"({wide})({operand})"
      else: ctype, value = c_type(kind), number(operand, kind)
      code += f" {ctype} {name} = {f'flush({value})' if flush else value};"
    c = re.sub(r"\bBITS\b", str(width), re.sub(r"\bW\b", wide, re.sub(r"\bT\b", c_type(t), c)))
    c = re.sub(r"\(B\)", f"({bits_type(t)})", c)
    if "sat" in mods: c = f"saturate({c})"
    if flush: c = f"flush({c})"
    result = named.get(types[0], types[0])
    return f"{code} u64 d_ = {f'(u64)({wide})({c})' if result.startswith('wide') else stored(c, result)};"

  def vector(self, operand: str) -> list[str]:
    return [x.strip() for x in operand.strip("{} ").split(",")]

  def vector_move(self, s: Statement) -> str:
    """mov that unpacks a register into parts, or packs parts into a register."""
    if s.operands[0][0] == "{":
      parts = self.vector(s.operands[0])
      w = BITS[s.mods[0]] // len(parts)
      return f"{{ u64 x_ = {self.bits(s.operands[1])}; " + " ".join(
        self.assign(p, f"(u{w})(x_ >> {w * i})") for i, p in enumerate(parts)) + " }"
    parts = self.vector(s.operands[1])
    w = BITS[s.mods[0]] // len(parts)
    return self.assign(s.operands[0], " | ".join(f"(u64)(u{w}){self.bits(p)} << {w * i}" for i, p in enumerate(parts)))

  def memory(self, s: Statement) -> str:
    load, t = s.name != "st", s.mods[-1]
    known = {"nc", "weak", "volatile", "relaxed", "acquire", "release", "gpu", "cta", "sys", "ca", "cg", "cs", "lu",
             "cv", "wb", "wt", *SPACES}
    space = next((x for x in s.mods if x in SPACES), "")
    lanes = next((int(x[1:]) for x in s.mods if re.fullmatch(r"v[248]", x)), 1)
    if strange := [x for x in s.mods[:-1] if x not in known and "::" not in x and not re.fullmatch(r"v[248]", x)]:
      raise PTXError(f"unknown .{strange[0]}")
    address, implied = self.address(s.operands[0 if not load else 1].strip("[] "))
    registers, size = self.vector(s.operands[1 if not load else 0]), BITS[t] // 8
    if len(registers) != lanes: raise PTXError(f"{len(registers)} registers")
    space = space or implied
    what, whole = f"{bits_type(t)} x_[{lanes}]", size * lanes
    if space in ("param", "const"): place = f"arguments + {address}" if space == "param" else f"(u8 *){address}"
    else: place = f"{space.upper() or 'GENERIC'}_AT({address}, {whole}, {self.site(s)}, {'0' if load else '(u8 *)x_'})"
    if not load:
      values = ", ".join(f"({bits_type(t)}){self.bits(r)}" for r in registers)
      return f"{{ {what} = {{{values}}}; u8 *at_ = {place}; COPY(at_, x_, {whole}); }}"
    widen = "(s64)" + f"({t})" if t[0] == "s" else ""
    return f"{{ {what}; const u8 *at_ = {place}; COPY(x_, at_, {whole}); " + " ".join(
      self.assign(r, f"{widen}x_[{i}]") for i, r in enumerate(registers)) + " }"

  def generic(self, s: Statement) -> str:
    """cvta: converts an address of a state space to a generic one, or back (`to`). On a GPU they are the same."""
    space = next(x for x in s.mods if x in SPACES)
    window = {"shared": "DEVICE", "local": "LOCAL"}.get(space, "0")
    if space == "const": raise PTXError("a generic address of a constant")
    return self.assign(s.operands[0], f"(u64)({self.bits(s.operands[1])}) {'-' if 'to' in s.mods else '+'} {window}")

  def compare(self, s: Statement) -> str:
    t, how = s.mods[-1], s.mods[0]
    others = [x for x in s.mods[1:-1] if x not in ("and", "or", "xor", "ftz")]
    table = COMPARE_FLOAT if t in FLOATS else COMPARE_UNSIGNED
    if others or how not in table or t in PAIRS: raise PTXError("a comparison that the simulator does not support")
    code = self._expression(table[how], t, [self.bits(o) for o in s.operands[1:3]], ("pred", "T", "T"), s.mods)
    join = next((f" {c} ({self.bits(s.operands[3])})" for x, c in (("and", "&"), ("or", "|"), ("xor", "^"))
                 if x in s.mods), "")
    yes, *no = s.operands[0].split("|")
    return code + (f" u8 o_ = !d_{join};" if no else "") + self.assign(yes.strip(), f"(d_{join})") + \
      "".join(self.assign(x.strip(), "o_") for x in no) + " }"

  def compare_to_number(self, s: Statement) -> str:
    """set: a comparison with the result 1.0 or 0.0 (f32), or all ones or 0 (integers)."""
    how, *rest, to, t = s.mods
    table = COMPARE_FLOAT if t in FLOATS else COMPARE_UNSIGNED
    if rest not in ([], ["ftz"]) or how not in table or to not in ("f32", "u32", "s32"):
      raise PTXError("a comparison that the simulator does not support")
    code = self._expression(table[how], t, [self.bits(o) for o in s.operands[1:]], ("pred", "T", "T"), s.mods)
    yes = "0x3f800000u" if to == "f32" else "0xffffffffu"
    return f"{code} {self.assign(s.operands[0], f'd_ ? {yes} : 0')} }}"

  def convert(self, s: Statement) -> str:
    """cvt. Narrowing a float and converting it to an integer need an explicit rounding modifier, else PTXError."""
    to, t = s.mods[-2:] if len(s.mods) > 1 else ("", "")
    how = s.mods[:-2]
    rounding = next((x for x in how if x in ROUNDING), "")
    if to not in BITS or t not in BITS or [x for x in how if x not in (*ROUNDING, "rn", "rna", "ftz", "sat")]:
      raise PTXError("a conversion that the simulator does not support")
    if to in PAIRS and t == "f32" and how == ("rn",):
      high, low = (stored(self.value(o, "f32"), PAIRS[to]) for o in s.operands[1:])
      return self.assign(s.operands[0], f"(u32){high} << 16 | {low}")
    if to == "tf32" and how == ("rna",):
      return self.assign(s.operands[0], f"({self.bits(s.operands[1])} + 0x1000u) & ~0x1fffu")
    if to in PAIRS or t in PAIRS or to == "tf32": raise PTXError("a conversion that the simulator does not support")
    x = self.value(s.operands[1], t)
    if t == "f32" and "ftz" in how: x = f"flush({x})"
    if rounding and t in FLOATS: x = f"{ROUNDING[rounding]}({x})"
    if to in FLOATS:
      exact = t in FLOATS and BITS[to] >= BITS[t]
      if not exact and "rn" not in how and not rounding: raise PTXError("a conversion without its rounding")
      if t == "u64" or t == "s64" and to != "f64": x = f"({'float' if to == 'f32' else 'double'}){x}"
      x = f"saturate({x})" if "sat" in how else x
      x = f"flush({x})" if to == "f32" and "ftz" in how else x
    elif t in FLOATS:
      if not rounding: raise PTXError("a conversion without its rounding")
      x = f"to_{'signed' if to[0] == 's' else 'unsigned'}({x}, {BITS[to]})"
    elif "sat" in how: raise PTXError("a saturating conversion of integers")
    wide = "(s64)" if to[0] == "s" else ""
    return self.assign(s.operands[0], stored(x, to) if to in FLOATS else f"{wide}({c_type(to)})({x})")

  # *** meetings
  def meeting(self, s: Statement, kind: str, brings: tuple[str, ...], mask: str = "") -> str:
    """C: stores a thread's inputs, then waits for the others. `mask`: the lanes that take part in an exchange."""
    self.meets = True
    code = "".join(f"t->in[{i}] = {x}; " for i, x in enumerate(brings) if x)
    return f"{code}{f't->mask = {self.bits(mask)}; ' if mask else ''}t->meet(t, {kind}, {self.site(s)});"

  def taken(self, registers: list[str]) -> str:
    """C: copies a meeting's results to registers."""
    return "".join(f" {self.assign(r, f't->out[{i}]')}" for i, r in enumerate(registers))

  def exchanged(self, s: Statement, kind: str) -> str:
    code = self.meeting(s, kind, tuple(self.bits(o) for o in s.operands[1:-1]), s.operands[-1])
    return code + self.taken([d.strip() for d in s.operands[0].split("|")])

  def multiply(self, s: Statement) -> str:
    """mma m16n8k*; warp.c documents the layout of `in`."""
    m = re.fullmatch(r"sync\.aligned\.m16n8k(\d+)\.row\.col\.(f32|f16)\.(f16|bf16|tf32)\.\3\.\2", ".".join(s.mods))
    if m is None or int(m[1]) not in ((4, 8) if m[3] == "tf32" else (8, 16)):
      raise PTXError("a matrix instruction that the simulator does not support")
    d, a, b, c = map(self.vector, s.operands)
    brings = [""] * 15
    for at, registers in ((0, a), (4, b), (8, c)): brings[at:at + len(registers)] = map(self.bits, registers)
    brings[12:] = m[1], f"'{m[3].replace('f16', 'h')[0]}'", "'f'" if m[2] == "f32" else "'h'"
    return self.meeting(s, "MMA", tuple(brings)) + self.taken(d)

  def matrices(self, s: Statement) -> str:
    if not re.fullmatch(r"sync\.aligned\.m8n8\.x[124](\.trans)?\.shared\.b16", ".".join(s.mods)):
      raise PTXError("a load of matrices that the simulator does not support")
    registers, address = self.vector(s.operands[0]), self.address(s.operands[1].strip("[] "))[0]
    read = f"if (t->lane < {8 * len(registers)}) COPY(t->in + 4, SHARED_AT({address}, 16, {self.site(s)}, 0), 16); "
    return f"{{ {read}" + self.meeting(s, "LDMATRIX", ("0", str(len(registers)), str(int("trans" in s.mods)))) + \
      self.taken(registers) + " }"

  # *** C
  def code(self) -> str:
    """C: the function, and the tables of its argument offsets and instruction texts."""
    name = c_name(self.entry.name)
    registers = "".join(f"  {bits_type(t)} {c} = 0;\n" for c, t in self.used.items())
    sites = ", ".join('"' + re.sub(r'[\\"]', "", x) + '"' for x in self.sites) or '""'
    places = ", ".join(str(x) for place in self.places for x in place) or "0"
    return f"static void code_{name}(Thread *t, const u8 *arguments) {{\n{registers}" \
           f"  u8 frame[{self.declared['local'] or 1}] __attribute__((aligned(16)));\n" + \
           "\n".join(f"  {x}" for x in self.lines if x) + "\n}\n" \
           f"static const u32 places_{name}[] = {{{places}}};\nstatic const char *const sites_{name}[] = {{{sites}}};\n"

  def row(self) -> str:
    name = c_name(self.entry.name)
    e = self.entry
    return f'{{"{e.name}", code_{name}, {e.argument_bytes}, {int(self.meets)}, {self.declared["shared"]}, ' \
           f"{e.threads}, {len(self.places)}, places_{name}, sites_{name}}}"

def to_c(ptx: str) -> str:
  """Translates a PTX module to C. PTXError for unknown PTX."""
  entries, constants = parse(ptx)
  functions = [Function(e, {c.name: c for c in constants}) for e in entries]
  arrays = [f"static const {bits_type(c.type)} {c_name('K' + c.name)}[] __attribute__((aligned(16))) = "
            f"{{{', '.join(re.sub('^0[fFdD]', '0x', x) for x in c.values)}}};\n" for c in constants]
  return '#include "kernel.h"\n' + "".join(arrays) + "".join(f.code() for f in functions) + \
    "const Entry ENTRIES[] = {\n" + "".join(f"  {f.row()},\n" for f in functions) + "  {0}};\n"

def main() -> None:
  *compiler, source, library = sys.argv[1:]
  with open(source) as file: ptx = file.read()
  try: c = to_c(ptx)
  except PTXError as e: sys.exit(f"PTX that the simulator does not support: {e}")
  with open(f"{library}.c", "w") as file: file.write(c)
  os.execvp(compiler[0], [*compiler, "-o", library, f"{library}.c", "-lm"])

if __name__ == "__main__": main()
