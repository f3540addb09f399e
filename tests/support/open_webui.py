"""
Requests as Open WebUI sends them to a server of OpenAI's API; the texts are ours.

Source: https://github.com/open-webui/open-webui, routers/openai.py, routers/tasks.py, retrieval/utils.py. It takes its
own fields out (metadata), and sends max_tokens where the server is not OpenAI's.
"""
from typing import Any

HEADERS = {"Authorization": "Bearer none", "X-OpenWebUI-User-Name": "A%20B", "X-OpenWebUI-User-Id": "1",
           "X-OpenWebUI-User-Email": "a@example.org", "X-OpenWebUI-User-Role": "admin"}
TALK = [{"role": "user", "content": "Tell me about a fox."}, {"role": "assistant", "content": "A fox lived in a wood."},
        {"role": "user", "content": "And then?"}]

def chat(model: str, **more: Any) -> dict[str, Any]:
  """A turn of a conversation. more: what a user has set for the model."""
  return {"stream": True, "model": model, "messages": [{"role": "system", "content": "Be brief."}, *TALK],
          "stream_options": {"include_usage": True}} | more

SET = {"temperature": 0.7, "top_p": 0.9, "min_p": 0.0, "max_tokens": 12, "frequency_penalty": 0.1, "seed": 7,
       "presence_penalty": 0.1, "stop": ["</s>"], "logit_bias": {"5": -100}, "reasoning_effort": "low"}

def task(model: str, text: str, **more: Any) -> dict[str, Any]:
  """A request beside a conversation: one message, not streamed."""
  return {"model": model, "messages": [{"role": "user", "content": text}], "stream": False} | more

HISTORY = "<chat_history>\nUSER: Tell me about a fox.\nASSISTANT: A fox lived in a wood.\n</chat_history>"
TASKS: dict[str, tuple[str, dict[str, Any]]] = {
  "title": (f"Give a title of a few words.\nJSON format: {{\"title\": \"..\"}}\n{HISTORY}", {"max_tokens": 1000}),
  "tags": (f"Give one to three tags.\nJSON format: {{\"tags\": [\"..\"]}}\n{HISTORY}", {}),
  "follow-ups": (f"Suggest three questions.\nJSON format: {{\"follow_ups\": [\"..\"]}}\n{HISTORY}", {}),
  "queries": (f"Give search queries.\nJSON format: {{\"queries\": [\"..\"]}}\n{HISTORY}", {}),
  "emoji": ("Give one emoji for: A fox lived in a wood.", {"max_tokens": 4}),
  "autocompletion": (f"Continue the text.\n{HISTORY}\n<text>Once upon", {})}

def embeddings(model: str, texts: list[str]) -> dict[str, Any]: return {"input": texts, "model": model}
