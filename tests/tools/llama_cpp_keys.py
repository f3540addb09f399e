"""
Compares tests/support/loader_keys.py with llama.cpp's source, and prints each key that one has and the other lacks.

  python tests/tools/llama_cpp_keys.py LLAMA.CPP [--all]

LLAMA.CPP is a checkout; --all also prints each architecture's keys, marked ! where a file must have the key and []
where a number for each layer may stand.
"""
import argparse
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support.loader_keys import KEYS

CALL = re.compile(r"ml\.(get_key_or_arr|get_key|get_arr_n|get_arr)\((LLM_KV_\w+),([^;{]*?)\)(?=\s*(?:;|\)|\|\||&&))")
# read in branches for one architecture that is none of ours, or no metadata of the architecture
OTHERS = {"features_length", "posnet.embedding_length", "posnet.block_count", "convnext.embedding_length",
          "convnext.block_count"}

def body(text: str, start: int) -> str:
  """The text of the braces that open after `start`."""
  first = i = text.index("{", start)
  depth = 0
  while True:
    depth += (text[i] == "{") - (text[i] == "}")
    if depth == 0: return text[first:i + 1]
    i += 1

def read_keys(code: str, names: dict[str, str]) -> dict[str, str]:
  """The keys that a function's code reads, with their marks."""
  found = {}
  for function, name, rest in CALL.findall(code):
    needed = not re.search(r"(false|0|0\.0f)\s*$", rest)
    if name in names: found[names[name]] = "[]" * ("arr" in function) + "!" * needed
  if "load_swa_pattern" in code: found["attention.sliding_window_pattern"] = "[]"
  return found

def loader_keys(root: pathlib.Path) -> dict[str, dict[str, str]]:
  """{architecture: {key: marks}} of a checkout."""
  source = root / "src"
  table, model = (source / "llama-arch.cpp").read_text(), (source / "llama-model.cpp").read_text()
  archs = dict(re.findall(r'\{ (LLM_ARCH_\w+),\s+"([^"]+)"', table))
  names = dict(re.findall(r'\{ (LLM_KV_\w+),\s+"%s\.([^"]+)"', table))
  bases = dict(re.findall(r"struct (llama_model_\w+) : public (llama_model_\w+)",
                          (source / "models/models.h").read_text()))
  code = {}
  for path in sorted((source / "models").glob("*.cpp")):
    text = path.read_text()
    for m in re.finditer(r"void (llama_model_\w+)::load_arch_hparams", text): code[m[1]] = body(text, m.end())
  general = read_keys(body(model, model.index("void llama_model_base::load_hparams")), names)
  ret = {}
  for cases, name in re.findall(r"((?:case LLM_ARCH_\w+:\s*)+)return new (llama_model_\w+)\(params\)", model):
    while name not in code and name in bases: name = bases[name]
    for arch in re.findall(r"LLM_ARCH_\w+", cases):
      ret[archs[arch]] = {key: mark for key, mark in general.items() if key not in OTHERS} | read_keys(
        code.get(name, ""), names)
  return ret

def main() -> None:
  ap = argparse.ArgumentParser(description="Compare the table of loader keys with llama.cpp's source.")
  ap.add_argument("root", type=pathlib.Path)
  ap.add_argument("--all", action="store_true")
  args = ap.parse_args()
  theirs = loader_keys(args.root)
  for arch, keys in KEYS.items():
    have = theirs.get(arch, {})
    if args.all: print(f"{arch}: {' '.join(key + mark for key, mark in have.items())}")
    for key in sorted(have.keys() - keys.keys()): print(f"{arch}: the table lacks {key}")
    for key in sorted(keys.keys() - have.keys()): print(f"{arch}: llama.cpp does not read {key}")

if __name__ == "__main__": main()
