"""Translates a Metal kernel's source to C++, and finds what Apple's compiler would refuse though clang accepts it."""
import re
from typing import NamedTuple

BUFFERS = 31  # of a kernel, at most. Source: Metal's feature set tables, buffer argument table
POSITIONS = {"threadgroup_position_in_grid": "group", "thread_position_in_threadgroup": "at"}
KERNEL = re.compile(r"^kernel void (\w+)\(([^{]*)\)\s*\{", re.MULTILINE)
TYPE = r"(?:(?:un)?signed )?\w+"
BUFFER = re.compile(rf"device (?:const )?({TYPE})\s*\*\s*(\w+)")
VARIABLE = re.compile(rf"constant ({TYPE})\s*&\s*(\w+)")
POSITION = re.compile(r"uint3 (\w+) \[\[(\w+)\]\]")
ARRAY = re.compile(rf"threadgroup __attribute__\(\(aligned\(16\)\)\) ({TYPE}) (\w+)\[(\d+)\];")
# C++ that clang accepts and Metal does not have
REFUSED = {
  r"\bdouble\b": "Metal has no double", r"\blong long\b|\b\d\w*(?:ll|LL)\b": "Metal has no long long",
  r"\b(?:new|delete|try|throw|catch|goto|dynamic_cast|typeid|thread_local|virtual)\b": "Metal's C++ has no such word",
  r"\bstatic\b(?! constant)": "Metal has no static variables",
  r"^\s*threadgroup\b[^*(]*=": "a threadgroup's memory has no initial value",
}
SPACES = r"(?:device|constant|threadgroup|thread)\s+(?:__attribute__\(\(aligned\(16\)\)\)\s+)?(?:const\s+)?"
NUMBER = r"(?:(?:un)?signed )?(?:bool|u?char|u?short|u?int|u?long|half|bfloat|float)[234]?"
POINTER = re.compile(rf"({SPACES})?\b({NUMBER})\s*\*")

class Signature(NamedTuple):
  """A kernel's signature. arguments: (type, name) in Metal's order. positions: attributes of the other parameters."""
  name: str
  arguments: list[tuple[str, str]]
  positions: list[str]

def signature(source: str) -> Signature:
  """The signature of a source's only kernel. ValueError if it has none, several, or an argument of an unknown kind."""
  found = KERNEL.findall(source)
  if len(found) != 1: raise ValueError(f"{len(found)} kernels, not one")
  (name, text), = found
  arguments, positions = list[tuple[str, str]](), list[str]()
  for given in map(str.strip, text.split(",")):
    if m := BUFFER.fullmatch(given): arguments.append((f"{m[1]} *", m[2]))
    elif m := VARIABLE.fullmatch(given): arguments.append((f"const {m[1]} &", m[2]))
    elif (m := POSITION.fullmatch(given)) and m[2] in POSITIONS: positions.append(m[2])
    else: raise ValueError(f"argument {given!r}: neither a device buffer, nor a constant, nor a known position")
  return Signature(name, arguments, positions)

def has_arrays(source: str) -> bool:
  """Whether the kernel declares threadgroup memory."""
  return ARRAY.search(source) is not None

def stored(source: str) -> list[int]:
  """The indices of the arguments that a kernel of tinygrad writes to."""
  written = set(re.findall(r"^\s*\*\([^=]*?\b(data\d+_\w*)[^=]* = ", source, re.MULTILINE))
  return [i for i, (_, name) in enumerate(signature(source).arguments) if name in written]

def refused(source: str) -> list[str]:
  """Errors that Apple's compiler would report, as far as the source's text shows them."""
  code = re.sub(r"//[^\n]*|/\*.*?\*/", "", source, flags=re.DOTALL)
  found = [f"{m[0].strip()!r}: {why}" for text, why in REFUSED.items() for m in re.finditer(text, code, re.MULTILINE)]
  found += [f"{m[0]!r}: no array of threadgroup memory as it is known here"
            for m in re.finditer(r"^\s*threadgroup\b[^;*]*;", ARRAY.sub("", code), re.MULTILINE)]
  found += [f"{m[0]!r}: a pointer has no address space" for m in POINTER.finditer(code) if m[1] is None]
  try: of = signature(source)
  except ValueError as e: return [*found, str(e)]
  if len(of.arguments) > BUFFERS: found.append(f"{len(of.arguments)} arguments: a kernel has at most {BUFFERS}")
  if "using namespace metal;" not in source: found.append("names of the namespace metal are not in sight")
  return found

def as_cpp(source: str) -> str:
  """
  The source as C++ with metal_stdlib: the same lines, except that the executor allocates threadgroup arrays.

  The function msl_entry(arguments, position of the threadgroup, position in it) is appended.
  """
  of = signature(source)
  given = [f"*static_cast<{type[:-1]}*>(arguments[{i}])" if type.endswith("&") else
           f"static_cast<{type}>(arguments[{i}])" for i, (type, _) in enumerate(of.arguments)]
  given += [f"uint3{{{', '.join(f'{POSITIONS[position]}[{i}]' for i in range(3))}}}" for position in of.positions]
  entry = ('\nextern "C" __attribute__((no_sanitize("thread")))\n'
           "void msl_entry(void **arguments, const uint *group, const uint *at) {\n"
           f"  {of.name}({', '.join(given)});\n}}\n")
  return ARRAY.sub(r"MSL_THREADGROUP(\1, \2, \3);", source) + entry
