"""
Compares trained models with llama.cpp: perplexity, KL divergence, the tokenizer, greedy answers, a chat, speed.

  python tests/tools/real_models.py [--only perplexity,tokens,answers,chat,speed] [MODEL ..]     make real-models

The models are Python packages (tests/support/trained_models.py). The reference, "float", is this project with float
activations: divergences are measured from it, and both programs should give its answers. Where an answer differs, the
report gives how much likelier the float model finds its own token, in nats; that is little for two nearly equal tokens.

The report goes to --out, by default to bench/results/real-models-DATE.json. It needs the extra `bench`.
"""
from __future__ import annotations
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("DEV", "CPU")  # tinygrad reads it when it is imported
import llama_cpp as lc
import numpy as np
import tinygrad_llm
from bench.machine import cores, machine, now, result_file, versions
from tests.support.hostile_texts import as_unicode, hostile_texts
from tests.support.llama_cpp_logits import Peer
from tinygrad_llm import InputError
from tinygrad_llm.command import Parser, guarded
from tinygrad_llm.engine.llm import LLM
from tinygrad_llm.engine.perplexity import measure
from tinygrad_llm.files.kl_base import Reader
from tests.support.trained_cases import BEGINNINGS, CONTEXT, PROMPTS, TEXT, TURNS
from tests.support.trained_models import MODELS, NotThere, fetch

CHUNKS, ANSWER, TURN = 4, 32, 48
Row = dict[str, Any]

def command(*args: Any, **env: str) -> Any:
  """The JSON that a command prints. InputError if it fails."""
  paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
  done = subprocess.run([sys.executable, *map(str, args)], stdout=subprocess.PIPE, text=True, cwd=ROOT,
                        env={**os.environ, "DEV": "CPU", "PYTHONPATH": paths, **env})
  if done.returncode: raise InputError(f"{' '.join(map(str, args))}: it ended with exit code {done.returncode}")
  return json.loads(done.stdout)

def load(path: pathlib.Path, context: int, floats: bool = False) -> LLM:
  """Loads a model, with float activations if `floats`: the switch is read during loading."""
  before = os.environ.pop(switch := "NO_Q8_ACTIVATIONS", None)
  try:
    if floats: os.environ[switch] = "1"
    return tinygrad_llm.load(str(path), max_context=context)
  finally:
    os.environ.pop(switch, None)
    if before is not None: os.environ[switch] = before

def perplexity(path: pathlib.Path, chat: bool) -> Row:
  """Perplexities of a text, and divergences from the float model as [ours, llama.cpp's]."""
  with tempfile.TemporaryDirectory() as folder:
    base, module = pathlib.Path(folder) / "base", ("-m", "tinygrad_llm.perplexity")
    asked = ("-m", path, "--kl-base", base, "--json")
    exact = command(*module, *asked, "-f", TEXT, "-c", CONTEXT, "--chunks", CHUNKS, NO_Q8_ACTIVATIONS="1")
    ours = command(*module, *asked, "--kl-divergence", NO_Q8_ACTIVATIONS="0")
    peer, read = Peer(path, CONTEXT, cores()), Reader(base)
    stand_in = SimpleNamespace(path=path, iter_logits=lambda ids, first: [peer.logits(ids, first)],
                               tokenizer=SimpleNamespace(add_bos=lc.llama_vocab_get_add_bos(peer.vocab),
                                                         bos=lc.llama_vocab_bos(peer.vocab),
                                                         vocab_size=peer.vocab_size))
    found, against = measure(stand_in, read.tokens, lambda _: None, base=read)  # type: ignore[arg-type]
    peer.close()
    assert against is not None
    theirs = against.report()
  return {"tokens": ours["tokens"], "float": exact["perplexity"], "here": ours["perplexity"], "llama.cpp": found.value,
          **{name: [ours[name], theirs[name]] for name in ("kl", "kl_error", "kl_max", "rms_dp", "same_top")}}

def tokens(path: pathlib.Path, chat: bool) -> Row:
  """How many hostile texts get llama.cpp's tokens, with control tokens parsed and not, and which do not."""
  peer, tokenizer, texts, same = Peer(path, 64), load(path, 64).tokenizer, hostile_texts(), dict[str, int]()
  others: list[str] = []
  for name, special in (("plain", False), ("special", True)):
    wrong = [text for text in texts if tokenizer.encode(text, add_bos=tokenizer.add_bos, parse_special=special)
             != peer.encode(as_unicode(text), True, special)]
    same[name], others = len(texts) - len(wrong), others + [ascii(text) for text in wrong]
  peer.close()
  return {"texts": len(texts), "same": same, "others": others}

def judged(exact: LLM, prompt: list[int], answer: list[int], other: list[int]) -> Row | None:
  """Where `other` leaves the float model's answer, and by how many nats that prefers its own token; None: nowhere."""
  at = next((i for i, (a, b) in enumerate(zip(answer, other)) if a != b), None)
  if at is None: return None
  logits = exact.prefill(prompt + answer[:at]).astype(np.float64)
  return {"at": at, "nats": float(logits[answer[at]] - logits[other[at]])}

def told(cases: list[Row]) -> Row:
  """How many answers equal the float model's, and the largest difference in nats where others leave it."""
  return {who: {"same": sum(case[who] is None for case in cases),
                "largest_gap": max((case[who]["nats"] for case in cases if case[who]), default=0.0)}
          for who in ("here", "llama.cpp")} | {"answers": len(cases), "cases": cases}

def answers(path: pathlib.Path, chat: bool) -> Row:
  """Greedy answers to ten prompts; for a base model, continuations of ten beginnings."""
  llm, exact, peer = load(path, CONTEXT), load(path, CONTEXT, floats=True), Peer(path, CONTEXT, cores())
  cases = []
  for text in PROMPTS if chat else BEGINNINGS:
    ids = (llm.prompt([{"role": "user", "content": text}]) if chat else
           llm.tokenizer.encode(text, add_bos=llm.tokenizer.add_bos))
    answer, ours = (list(model.generate(ids, max_tokens=ANSWER, ignore_eos=True)) for model in (exact, llm))
    theirs = [token for token, _, _ in peer.greedy(ids, ANSWER)]
    cases.append({"prompt": text, "here": judged(exact, ids, answer, ours),
                  "llama.cpp": judged(exact, ids, answer, theirs)})
  peer.close()
  return told(cases) | {"tokens": ANSWER}

def chat(path: pathlib.Path, chat: bool) -> Row:
  """A conversation of three turns with the float model's replies. cached: cached tokens of each prompt."""
  if not chat: return {"left_out": "a base model has no turns"}
  llm, exact, peer = load(path, 2 * CONTEXT), load(path, 2 * CONTEXT, floats=True), Peer(path, 2 * CONTEXT, cores())
  messages, cases = list[dict[str, str]](), []
  for text in TURNS:
    messages.append({"role": "user", "content": text})
    ids = llm.prompt(messages)
    answer = list(exact.generate(ids, max_tokens=TURN))
    ours, timing = list(llm.generate(ids, max_tokens=TURN)), llm.timing
    theirs = [token for token, _, _ in peer.greedy(ids, TURN, llm.tokenizer.stop_ids)]
    said = "".join(exact.text(iter(answer)))
    cases.append({"prompt": text, "reply": said, "prompt_tokens": len(ids), "cached": timing.cached_tokens,
                  "here": judged(exact, ids, answer, ours), "llama.cpp": judged(exact, ids, answer, theirs)})
    messages.append({"role": "assistant", "content": said})
  peer.close()
  return told(cases)

def speed(path: pathlib.Path, chat: bool) -> Row:
  """bench/peers.py's decode speed and prefill speed of 256 tokens, in turns with llama.cpp at its best settings."""
  found = command(ROOT / "bench" / "peers.py", "-m", path, "--peers", "llama.cpp", "-p", 256, "-n", 128, "--json",
                  "--out", os.devnull)
  (model,) = found["models"]
  medians = {(row["test"], row["peer"]): row["median_ts"] for row in model["rows"]}
  return {row["test"]: {"here": row["median_ts"], "llama.cpp": medians[row["test"], "llama.cpp"],
                        "ratio": row["vs"]["llama.cpp"]} for row in model["rows"] if row["peer"] == "tinygrad_llm"
          } | {"threads": found["threads"], "bandwidth_gbs": model["bandwidth_gbs"]}

PARTS: dict[str, Callable[[pathlib.Path, bool], Row]] = {
  "perplexity": perplexity, "tokens": tokens, "answers": answers, "chat": chat, "speed": speed}

def _main() -> None:
  parser = Parser(prog="python tests/tools/real_models.py", description="Trained models beside llama.cpp.")
  parser.add_argument("models", nargs="*", metavar="MODEL", help=f"{', '.join(MODELS)} (default: all)")
  parser.add_argument("--only", default=",".join(PARTS), metavar="PARTS", help=f"of {', '.join(PARTS)} (default: all)")
  parser.add_argument("--out", type=pathlib.Path, metavar="FILE",
                      help="where the JSON goes (default: bench/results/real-models-DATE.json); other parts in it stay")
  args = parser.parse_args()
  for what, names, known in (("MODEL", args.models, MODELS), ("--only", args.only.split(","), PARTS)):
    if wrong := [name for name in names if name not in known]:
      raise InputError(f"{what} {wrong[0]!r:.40}: not known; give {', '.join(known)}")
  date = now()
  file, rows = args.out or result_file("real-models", date), dict[str, Row]()
  if file.exists(): rows = json.loads(file.read_text())["models"]
  for name in args.models or MODELS:
    try: path = fetch(name)
    except NotThere as e:
      print(f"left out: {e}", file=sys.stderr)
      continue
    rows.setdefault(name, {"file": path.name})
    for part in args.only.split(","):
      print(f"{name}: {part}", file=sys.stderr, flush=True)
      rows[name][part] = PARTS[part](path, MODELS[name].chat)
      print(json.dumps({name: {part: rows[name][part]}}), flush=True)
  if not rows: return
  report = {"date": date, "machine": machine(), "versions": versions() | {"llama-cpp-python": lc.__version__},
            "models": rows}
  file.write_text(json.dumps(report, indent=1) + "\n")
  print(f"written: {file}")

if __name__ == "__main__": guarded(_main)
