"""
Synthetic models for benchmarks: Llama-3.2-1B's shape with random weights, in every type that the figures need.

  python bench/models.py [--layers N] [TYPE ...]      prints the paths; existing files are kept

The files go to the user's cache folder. --layers saves time and disk, but the head, a sixth of the whole, then weighs
more.
"""
from __future__ import annotations
import os
import pathlib
import sys
ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from tests.support.synthetic import SHAPES, write_model
from tinygrad_llm.command import Parser, guarded
from tinygrad_llm.errors import InputError

TYPES = ("Q4_K_M", "Q6_K", "Q8_0", "Q5_K", "Q4_0", "MXFP4", "NVFP4", "IQ4_XS", "F16")

def cache() -> pathlib.Path:
  return pathlib.Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "tinygrad_llm" / "bench"

def model(shape: str, types: str, layers: int = 0) -> pathlib.Path:
  """Returns the path of a model of random blocks; writes it if it is missing. layers: 0 for the shape's own number."""
  arguments = SHAPES[shape] | ({"layers": layers} if layers else {})
  path = cache() / f"{shape}-{arguments['layers']}L-{types}.gguf"
  if not path.exists():
    path.parent.mkdir(parents=True, exist_ok=True)
    write_model(fresh := path.with_suffix(f".{os.getpid()}"), **arguments, types=types, blocks=True)
    fresh.replace(path)
  return path

def _main() -> None:
  parser = Parser(prog="python bench/models.py", description="Write synthetic models to measure; print their paths.")
  parser.add_argument("types", nargs="*", metavar="TYPE", default=TYPES, help=f"default: {' '.join(TYPES)}")
  parser.add_argument("--shape", choices=SHAPES, default="llama-1b")
  parser.add_argument("--layers", type=int, default=0, help="instead of the shape's own number")
  args = parser.parse_args()
  if args.layers < 0: raise InputError(f"--layers {args.layers}: give a number from 1")
  for types in args.types:
    try: print(model(args.shape, types, args.layers), flush=True)
    except (ValueError, KeyError) as e: raise InputError(f"{types}: not a type that can be written ({e})") from e

def main() -> None: guarded(_main)

if __name__ == "__main__": main()
