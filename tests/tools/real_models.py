"""
Trained models beside llama.cpp: perplexity, KL divergence, the tokenizer, greedy answers, speed.

  python tests/tools/real_models.py [--only perplexity,tokens,answers,speed] [MODEL ..]

The models are Python packages (tests/support/trained_models.py). Float is this project with float activations, the
base of both divergences. All goes to bench/results/real-models-DATE.json; it needs the extra `bench`.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from types import SimpleNamespace
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]
import llama_cpp as lc
import tinygrad_llm
from bench.machine import machine, now, result_file, versions
from hostile_texts import hostile_texts
from llama_cpp_logits import Peer
from tinygrad_llm.engine.perplexity import measure
from tinygrad_llm.files.kl_base import Reader
from trained_cases import BEGINNINGS, CONTEXT, PROMPTS, TEXT
from trained_models import MODELS, NotThere, fetch

PARTS, CHUNKS, ANSWER = ("perplexity", "tokens", "answers", "speed"), 3, 32

def command(module: str, *args: Any, **env: str) -> Any:
  """What a command prints as JSON."""
  paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
  done = subprocess.run([sys.executable, *module.split(), *map(str, args)], stdout=subprocess.PIPE, text=True,
                        check=True, cwd=ROOT, env={**os.environ, "DEV": "CPU", "PYTHONPATH": paths, **env})
  return json.loads(done.stdout)

def perplexity(path: pathlib.Path, chat: bool) -> dict[str, Any]:
  """Perplexities of a text, and divergences from the float model: [ours, llama.cpp's]."""
  with tempfile.TemporaryDirectory() as folder:
    base, module = pathlib.Path(folder) / "base", "-m tinygrad_llm.perplexity"
    asked = ("-m", path, "--kl-base", base, "--json")
    exact = command(module, *asked, "-f", TEXT, "-c", CONTEXT, "--chunks", CHUNKS, NO_Q8_ACTIVATIONS="1")
    ours = command(module, *asked, "--kl-divergence")
    peer, read = Peer(path, CONTEXT), Reader(base)
    stand_in = SimpleNamespace(path=path, iter_logits=lambda ids, first: [peer.logits(ids, first)],
                               tokenizer=SimpleNamespace(add_bos=lc.llama_vocab_get_add_bos(peer.vocab),
                                                         bos=lc.llama_vocab_bos(peer.vocab),
                                                         vocab_size=peer.vocab_size))
    found, against = measure(stand_in, read.tokens, lambda _: None, base=read)  # type: ignore[arg-type]
    assert against is not None
    theirs = against.report()
  return {"float": exact["perplexity"], "here": ours["perplexity"], "llama.cpp": found.value, "tokens": ours["tokens"],
          "kl": [ours["kl"], theirs["kl"]], "same_top": [ours["same_top"], theirs["same_top"]]}

def tokens(path: pathlib.Path, chat: bool) -> dict[str, Any]:
  """How many of the hostile texts have llama.cpp's tokens, with control tokens parsed and not."""
  peer, tokenizer, texts = Peer(path, 64), tinygrad_llm.load(str(path), max_context=64).tokenizer, hostile_texts()
  return {"texts": len(texts), "same": [sum(
    tokenizer.encode(text, parse_special=special) == peer.encode(text, False, special)
    for text in texts) for special in (False, True)]}

def answers(path: pathlib.Path, chat: bool) -> dict[str, Any]:
  """Greedy answers to ten prompts: how many tokens are llama.cpp's until the first that is not."""
  llm, peer, same = tinygrad_llm.load(str(path), max_context=CONTEXT), Peer(path, CONTEXT), []
  for text in PROMPTS if chat else BEGINNINGS:
    ids = (llm.prompt([{"role": "user", "content": text}]) if chat else
           llm.tokenizer.encode(text, add_bos=llm.tokenizer.add_bos))
    theirs = [int(x[0]) for x in peer.greedy(ids, ANSWER, ())]
    ours = list(llm.generate(ids, max_tokens=ANSWER, ignore_eos=True))
    same.append(next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), ANSWER))
  return {"tokens": ANSWER, "same": same}

def speed(path: pathlib.Path, chat: bool) -> dict[str, Any]:
  """bench/peers.py: decode and a prompt of 256 tokens, in turns with llama.cpp."""
  report = command(f"{ROOT / 'bench' / 'peers.py'}", "-m", path, "--peers", "llama.cpp", "-p", 256, "-n", 128, "--json",
                   "--out", os.devnull)
  rows = report["models"][0]["rows"]
  return {row["test"]: {"here": row["median_ts"], "ratio": row["vs"]["llama.cpp"]} for row in rows
          if row["peer"] == "tinygrad_llm"} | {"bandwidth_gbs": report["models"][0]["bandwidth_gbs"]}

def main() -> None:
  parser = argparse.ArgumentParser(description="Trained models beside llama.cpp.")
  parser.add_argument("models", nargs="*", default=[*MODELS], help=", ".join(MODELS))
  parser.add_argument("--only", default=",".join(PARTS), help="of these, separated by commas")
  args = parser.parse_args()
  os.environ.setdefault("DEV", "CPU")
  rows: dict[str, Any] = {}
  for name in args.models:
    try: path = fetch(name)
    except NotThere as e:
      print(e, file=sys.stderr)
      continue
    rows[name] = {part: globals()[part](path, MODELS[name].chat) for part in args.only.split(",")}
    print(name, json.dumps(rows[name], indent=1))
  if not rows: return
  file = result_file("real-models", date := now())
  report = {"date": date, "machine": machine(), "versions": versions(), "models": rows}
  file.write_text(json.dumps(report, indent=1) + "\n")
  print(f"written: {file}")

if __name__ == "__main__": main()
