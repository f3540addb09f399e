"""
Hooks of schemathesis for tests/tools/server_schema.py.

Answers are kept short, so that thousands of them end. Many drawn values give way to ones that the model takes, as a
request with a single wrong field is refused before the others are looked at.
"""
import random
from typing import Any

import schemathesis

TOKENS, ANSWERS = 8, 3
LENGTHS = ("max_tokens", "max_completion_tokens", "n_predict")
FINE: dict[str, tuple[Any, ...]] = {
  "messages": ([{"role": "user", "content": "A fox."}], [{"role": "system", "content": ""},
                                                         {"role": "user", "content": [{"type": "text", "text": "x"}]}]),
  "prompt": ("a fox", [5, 6], ["a", "b"], [[5], "b"]), "input": ("a fox", ["a", [5]]), "content": ("a fox", ["a", 5]),
  "tokens": ([5, 6], []), "temperature": (0, 0.7, 2), "top_p": (0.1, 1), "min_p": (0, 0.5), "top_k": (0, 5, -1),
  "repeat_penalty": (1, 1.3), "repetition_penalty": (None, 1.1), "presence_penalty": (0, -1),
  "frequency_penalty": (0, 2),
  "logit_bias": (None, {"5": 1}, [[5, False], ["a", 1.5]]), "stop": (None, "a", ["a", ""]), "stop_token_ids": ([5], []),
  "min_tokens": (None, 2), "json_schema": (None, None, {"type": "object"}), "regex": (None, None, "[ab]+"),
  "lark": (None, None, 'start: "a"'), "response_format": (None, {"type": "text"}, {"type": "json_object"}),
  "logprobs": (None, True, 0), "top_logprobs": (None, None, 2), "tools": (None, []), "functions": (None, []),
  "echo": (None, False, True), "best_of": (None,), "suffix": (None, ""), "dimensions": (None,), "n_probs": (None, 0, 3)}

def drawn(body: Any) -> Any:
  """A body with few tokens and answers, and with fine values for most fields. Each body gives the same one again."""
  if not isinstance(body, dict): return body
  body, rng = dict(body), random.Random(repr(sorted(map(repr, body.items()))))
  share = rng.choice((0, 0.7, 0.95))
  for name in sorted(FINE.keys() & body.keys()):
    if rng.random() < share: body[name] = rng.choice(FINE[name])
  for name in ("min_tokens", *LENGTHS):
    if type(value := body.get(name)) is not int: continue
    body[name] = TOKENS if value < 0 and name != "min_tokens" else min(value, TOKENS)
  if type(body.get("n")) is int: body["n"] = min(body["n"], ANSWERS)
  if not any(body.get(name) is not None for name in LENGTHS): body["max_tokens"] = TOKENS
  return body

@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
  case.body = drawn(case.body)
