"""
lm-evaluation-harness against the server at the address argv[1]: its scores are the ones of the Python API.

argv[2] is an interpreter with lm-eval. Two tasks of our own over 24 documents: the likeliest of three endings, and how
a text goes on. Prompts come as token ids in batches, and as texts one by one. A prompt of ids has what it has, so the
documents begin with the model's first token themselves. This file runs in our interpreter.
"""
import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import numpy as np

import tinygrad_llm
from tinygrad_llm.engine.llm import LLM

ROOT = pathlib.Path(__file__).resolve().parent
URL, PYTHON, WORDS = sys.argv[1], sys.argv[2], 12
DOCUMENTS = [json.loads(line) for line in (ROOT / "endings.jsonl").read_text().splitlines()]
COMMON = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(ROOT / "endings.jsonl")}},
          "test_split": "test", "doc_to_text": "{{begin}}", "metadata": {"version": 1}}
TASKS = {
  "endings": {"output_type": "multiple_choice", "doc_to_choice": "{{endings}}", "doc_to_target": "right",
              "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}]},
  "going_on": {"output_type": "generate_until", "doc_to_target": "{{endings[right]}}",
               "generation_kwargs": {"until": ["."], "max_gen_toks": WORDS, "do_sample": False},
               "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}]}}

def evaluated(name: str, first: str, batch: int, **options: Any) -> tuple[Any, dict[str, list[Any]]]:
  """The harness's scores of both tasks, and its samples. first: stands before each text. A task's YAML is JSON."""
  tasks, out = pathlib.Path.cwd() / "tasks", pathlib.Path.cwd() / name
  tasks.mkdir(exist_ok=True)
  for task, fields in TASKS.items():
    (tasks / f"{task}.yaml").write_text(json.dumps({"task": task, "description": first, **COMMON, **fields}))
  arguments = {"model": "any", "base_url": f"{URL}/v1/completions", "num_concurrent": 1, "max_retries": 1} | options
  env = os.environ | {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(pathlib.Path.cwd() / "hf")}
  done = subprocess.run([
    PYTHON, "-m", "lm_eval", "--model", "local-completions", "--tasks", ",".join(TASKS), "--include_path", str(tasks),
    "--model_args", ",".join(f"{k}={v}" for k, v in arguments.items()), "--batch_size", str(batch),
    "--output_path", str(out), "--log_samples"], env=env, text=True, capture_output=True)
  assert done.returncode == 0, done.stderr[-3000:]
  results, = out.rglob("results_*.json")
  samples = {task: [json.loads(line) for path in out.rglob(f"samples_{task}_*.jsonl")
                    for line in path.read_text().splitlines()] for task in TASKS}
  for found in samples.values(): found.sort(key=lambda sample: sample["doc_id"])
  return json.loads(results.read_text())["results"], samples

def likelihood(llm: LLM, begin: str, ending: str) -> float:
  """The logarithm of an ending's probability after a text."""
  count, ids = len(encoded(llm, begin)), encoded(llm, f"{begin} {ending}")
  rows = llm.logits(ids).astype(np.float64)
  rows -= rows.max(1, keepdims=True)
  rows -= np.log(np.exp(rows).sum(1, keepdims=True))
  return float(sum(rows[i - 1, ids[i]] for i in range(count, len(ids))))

def encoded(llm: LLM, text: str) -> list[int]: return llm.tokenizer.encode(text, parse_special=True)

def going_on(llm: LLM, begin: str) -> str:
  ids = encoded(llm, begin)
  return "".join(llm.text(llm.generate(ids, WORDS), stop=["."], prompt=ids)).strip()

with tinygrad_llm.load(max_context=512) as llm:
  tokenizer = llm.tokenizer
  first = tokenizer.shown_bytes(tokenizer.bos).decode() if tokenizer.add_bos else ""
  begins = [first + document["begin"] for document in DOCUMENTS]
  want = np.array([[likelihood(llm, begin, x) for x in d["endings"]] for begin, d in zip(begins, DOCUMENTS)])
  texts = [going_on(llm, begin) for begin in begins]
right = np.array([document["right"] for document in DOCUMENTS])
score, differ = float((want.argmax(1) == right).mean()), 0
for name, batch, options in (("ids", 8, {}), ("texts", 1, {"tokenized_requests": False})):
  scores, samples = evaluated(name, first, batch, **options)
  found = [[float(answer[0][0]) for answer in sample["resps"]] for sample in samples["endings"]]
  np.testing.assert_allclose(found, want, atol=1e-3)
  assert abs(scores["endings"]["acc,none"] - score) < 1e-9, (scores, score)
  said = [sample["resps"][0][0].strip() for sample in samples["going_on"]]
  other = [pair for pair in zip(said, texts) if pair[0] != pair[1]]
  assert len(other) <= 1, other  # rows of other answers may turn a near tie
  differ += len(other)
version = subprocess.run([PYTHON, "-c", "import importlib.metadata as m; print(m.version('lm_eval'))"],
                         text=True, capture_output=True, check=True).stdout.strip()
print(f"lm-eval {version}: {score:.3f} of {len(DOCUMENTS)} endings are right, as by the Python API; {differ} of "
      f"{2 * len(texts)} texts differ")
