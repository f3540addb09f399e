"""Inputs for the trained models, the same here and in llama.cpp: a text to predict, prompts, a conversation."""
import hashlib
import json
import pathlib

import numpy as np
from tests.support.hostile_texts import hostile_texts

GOLDEN = pathlib.Path(__file__).parents[1] / "golden" / "smollm2-135m.npz"
TEXT = pathlib.Path(__file__).parents[1] / "data" / "prose_and_code.txt"
CONTEXT, CHUNKS = 512, 2  # tokens of a chunk in the golden file, and number of chunks
BEST = 32                 # best tokens of each position whose log-probabilities the golden file has
ANSWER, TURN = 24, 24     # tokens of an answer, at most

PROMPTS = (
  "What is the capital of France?", "Write a haiku about the sea.", "Explain in one sentence why the sky is blue.",
  "Name three fruits that are red.", "Write a Python function that adds two numbers.",
  "Translate 'good morning' into Spanish.", "Who wrote Romeo and Juliet?", "What is 12 + 30?",
  "Give me a short recipe for pancakes.", "What do bees make?")
TURNS = ("My name is Ada and I like trains.", "Which city has many trains?", "What is my name?")
BEGINNINGS = (  # for a base model, without chat turns
  "The capital of France is", "Once upon a time, in a small village,", "def fibonacci(n):\n",
  "The three primary colours are",
  "Water boils at", "Dear Sir or Madam,\n\nI am writing to", "Q: Who wrote Hamlet?\nA:", "1, 2, 3, 4, 5,",
  "In 1969, the first human", "The recipe is simple. First,")

def texts_hash() -> str:
  """A sha256 of all inputs and sizes here that the golden file depends on."""
  asked = [hostile_texts(), PROMPTS, TURNS, TEXT.read_text(), CONTEXT, CHUNKS, BEST, ANSWER, TURN]
  return hashlib.sha256(json.dumps(asked).encode()).hexdigest()

def coarse_kl(log_p: np.ndarray, log_q: np.ndarray) -> float:
  """
  The mean KL(p || q) over positions, from the log-probabilities (positions, tokens) of some tokens.

  All other tokens count as one.
  """
  def with_rest(x: np.ndarray) -> np.ndarray:
    return np.concatenate([x, np.log(np.maximum(1 - np.exp(x).sum(-1, keepdims=True), 1e-9))], -1)
  p, q = with_rest(log_p.astype(np.float64)), with_rest(log_q.astype(np.float64))
  return float((np.exp(p) * (p - q)).sum(-1).mean())
