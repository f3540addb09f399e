"""
The same requests to this server and to the real llama-server, over the bundled model: what differs (make
server-differences).

  python tests/tools/server_differences.py PYTHON [--all] [-k NAME]

PYTHON is an interpreter with the package xllamacpp, see bench/peer_llama_server.py. Compared are status codes, the keys
and types of JSON, the order of a stream's events, and some values: finish reasons, counts, error types. ACCEPTED has
the differences that are meant, each with its reason. The exit code is 1 if there are others, or if an accepted one is
gone. --all prints the accepted ones, too.
"""
from __future__ import annotations
import argparse
import json
import pathlib
import re
import sys
from collections.abc import Iterator
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

import httpx
from bench.peer_llama_server import LlamaServer
from tests.support.served import served
from tests.tools.server_accepted import ACCEPTED, IGNORED
from tests.tools.server_requests import CASES, Case

MODEL = pathlib.Path(__file__).resolve().parents[2] / "tinygrad_llm" / "models" / "stories.gguf"
VALUES = re.compile(r"(.*\.)?(finish_reason|stop_type|object|role|index|stop|truncated|prompt_tokens|completion_tokens"
                    r"|total_tokens|tokens_predicted|tokens_evaluated|error\.type|n_ctx|total_slots|bos_token|eos_token"
                    r"|n_prompt_tokens|stopping_word)")
TEXTS = ("/tokenize", "/detokenize", "/apply-template")  # all values of their answers count

def shape(value: Any, whole: bool, path: str = "") -> Iterator[tuple[str, str]]:
  """Pairs of a key's path, and its type or value. The elements of a list are one."""
  if isinstance(value, dict):
    for key, each in value.items(): yield from shape(each, whole, f"{path}.{key}" if path else key)
  elif isinstance(value, list):
    yield path, "list"
    for each in value: yield from shape(each, whole, f"{path}[]")
  elif whole or VALUES.fullmatch(path): yield path, json.dumps(value)
  else: yield path, {"NoneType": "null", "int": "number", "float": "number"}.get(name := type(value).__name__, name)

def shapes(value: Any, whole: bool = False) -> dict[str, str]:
  found = dict[str, set[str]]()
  for path, kind in shape(value, whole): found.setdefault(path, set()).add(kind)
  return {path: " or ".join(sorted(kinds)) for path, kinds in found.items()}

def told(http: httpx.Client, case: Case) -> list[dict[str, str]]:
  """An answer: its status, then the shape of its JSON or of each event. Equal neighbours are one."""
  text = case.body if isinstance(case.body, str) else json.dumps(case.body)
  content = {} if case.body is None else {"content": text, "headers": {"content-type": "application/json"}}
  response = http.request(case.method, case.path, **content)
  kind = response.headers.get("content-type", "").partition(";")[0]
  found = [{"status": str(response.status_code), "content-type": kind}]
  if kind != "text/event-stream":
    try: return [*found, shapes(response.json(), case.path in TEXTS and response.is_success)]
    except ValueError: return found
  for line in response.text.splitlines():
    if not line.startswith("data: "): continue
    event = {"[DONE]": ""} if line == "data: [DONE]" else shapes(json.loads(line[6:]))
    for name in ("tokens_predicted", "tokens_evaluated"):
      if event.get("stop") == "false" and name in event: event[name] = "number"
    if event != found[-1]: found.append(event)
  return found

def differences(there: list[dict[str, str]], here: list[dict[str, str]]) -> Iterator[str]:
  """Lines that say what differs. Keys that only this server has are no difference."""
  if there[0] != here[0]:
    yield f"{' '.join(there[0].values())} there, {' '.join(here[0].values())} here"
    return
  if len(there) != len(here): yield f"{len(there) - 1} kinds of events there, {len(here) - 1} here"
  for theirs, ours in zip(there[1:], here[1:]):
    for key, value in theirs.items():
      if not any(re.fullmatch(ignored, key) for ignored in IGNORED) and ours.get(key) != value:
        yield f"{key}: {value} there, {ours.get(key, 'nothing')} here"

def main() -> int:
  parser = argparse.ArgumentParser(description="The answers of this server beside those of llama-server.")
  parser.add_argument("python", help="an interpreter with xllamacpp")
  parser.add_argument("-k", default="", metavar="NAME", help="only requests with this in their names")
  parser.add_argument("--all", action="store_true", help="print accepted differences, too")
  args = parser.parse_args()
  cases, unknown, used = [case for case in CASES if args.k in case.name], 0, set[int]()
  there = LlamaServer(args.python, str(MODEL), threads=1, slots=2, context=512, embedding=True)
  try:
    with served(MODEL, parallel=2) as ours, httpx.Client(base_url=f"http://{there.host}", timeout=60) as theirs:
      for case in cases:
        for line in dict.fromkeys(differences(told(theirs, case), told(ours.http, case))):
          which = [i for i, (name, what, _) in enumerate(ACCEPTED)
                   if re.fullmatch(name, case.name) and re.fullmatch(what, line)]
          used |= {*which}
          unknown += not which
          if args.all or not which:
            print(f"{case.name}: {line}{f' (accepted: {ACCEPTED[which[0]][2]})' if which else ''}", flush=True)
  finally: there.close()
  gone = [] if args.k else [entry for i, entry in enumerate(ACCEPTED) if i not in used]
  for name, what, _ in gone: print(f"accepted, but seen no more: {name}: {what}")
  print(f"{len(cases)} requests to {there.version.partition(',')[0]}: {unknown} unknown differences, "
        f"{len(used)} of {len(ACCEPTED)} accepted kinds seen")
  return int(unknown > 0 or bool(gone))

if __name__ == "__main__": sys.exit(main())
