"""Tests that llama-server passes and this server does not: (pattern of "file.py::test", the reason)."""

OPENAI = "errors have OpenAI's types; the code is context_length_exceeded, and both numbers are told"
SAFE = "a foreign origin gets a 403, also before its request"
ALWAYS = "/slots and /metrics are always there: no text of a prompt is in them, and a key protects them"
PROMETHEUS = "metrics have vLLM's names"
DATE = "templates read no date_string or datetime, as in transformers; chat_template_kwargs may give them"

ACCEPTED: list[tuple[str, str]] = [
  (r"basic.py::test_server_multiple_addresses", "--host takes one address"),
  (r"basic.py::test_server_slots|metrics.py::test_metrics_disabled", ALWAYS),
  (r"basic.py::test_server_model_aliases_and_tags", "any model name is served, so there are no aliases"),
  (r"chat_completion.py::test_chat_template_assistant_prefill\[prefill1.*",
   "parts of a text are joined by one line end everywhere; there it is two where the answer goes on"),
  (r"chat_completion.py::test_apply_chat_template", "the prompt's first token is shown, and /completion adds none"),
  (r"chat_completion.py::test_invalid_chat_completion_req\[messages7\]",
   "two messages of the assistant at the end: the last one goes on"),
  (r"chat_completion.py::test_context_size_exceeded(_stream)?", OPENAI),
  (r"security.py::test_access_static_assets_without_api_key", "the page is one document without other files"),
  (r"security.py::test_cors_options\[origin-Access-Control-Allow-Credentials.*",
   "keys are headers that a page sets itself; no cookie is read"),
  (r"security.py::test_cors_options\[web.mydomain.fr-Access-Control-Allow-(Methods|Headers).*",
   "the methods are those that there are, and the headers those that are asked for; * has no Authorization in it"),
  (r"security.py::test_cors_origins_localhost_rejects\[.*", SAFE),
  (r"security.py::test_cors_proxy_only_forwards_explicit_proxy_headers", "there is no proxy for pages"),
  (r"metrics.py::test_metrics_(prometheus_format|prompt_processed_and_cached|predicted_total_matches_requests"
   r"|embedding_prompt_is_counted)", PROMETHEUS),
  (r"embedding.py::test_embedding_mixed_input\[-False\]", "an empty text is refused, as OpenAI does"),
  (r"embedding.py::test_embedding_pooling_none(_oai)?", "the file tells the pooling; there is no option for it"),
  (r"slot_save.py::test_slot_save_restore_text_only_on_multimodal",
   "prefixes belong to no slot: all answers share them, and --prompt-cache keeps them"),
  (r"template.py::test_date_inside_prompt\[.*", DATE),
]
