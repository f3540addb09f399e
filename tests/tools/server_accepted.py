"""The differences from llama-server that are meant: (names of requests, the difference, the reason), as patterns."""

OPENAI = "as OpenAI's API has it"
STRICT = "a wrong value is refused here, and its field named"

# keys of llama-server that no client of ours is to read
IGNORED = [
  r"(.*\.)?(generation_settings|params)\..*",  # of samplers that are not here
  r"models(\[\].*)?", r"data\[\]\.(aliases|tags|architecture)(\[\]|\..*)?",
  r"data\[\]\.meta\.(vocab_type|n_params|ftype)",
  r"(model_ftype|media_marker|endpoint_.*|ui|ui_settings|chat_template_caps\..*|is_sleeping|cors_proxy_enabled)",
  r"modalities\.video", r"\[\]\.speculative", r"data\[\]\.encoding_format"]

ACCEPTED = [
  (".*", r"error\.code: number there, str here", OPENAI),
  (r"GET .*", r"404 .* there, 405 .* here", "the path is there, for POST"),
  (r"chat two|text (two.*|lists of ids)", r"usage\..*", "all answers and prompts are counted"),
  ("chat two, stream", r".*", "events of two answers mix by chance; all first chunks come first here"),
  (r"(chat|text) no tokens|native none", r"(usage\..*|tokens_predicted): .*", "none is made when none is asked for"),
  ("chat (tokens -1|grammar)", r"usage\..*", "the token that ends the answer is not counted"),
  (r"chat bias word|chat (temperature below 0|top_p 2|messages empty|role unknown)|embeddings 6",
   r"200 .* there, 400 .* here", STRICT),
  (r"chat (role missing|image)|detokenize [45]", r"500 .* there, 400 .* here", STRICT),
  (r"(chat|native) schema", r"(usage\..*|tokens_predicted|choices\[\]\.finish_reason|stop_type): .*",
   "JSON without blanks without end"),
  (r".* (too long|long, stream)", r'error\.type: "exceed_context_size_error" .*', f"{OPENAI}; the code tells it"),
  (r"chat (too long|long, stream)", r"error\.n_prompt_tokens: .*", "a lower bound, which needs no tokens"),
  ("text stream, usage", r"3 kinds of events there, 4 here", f"usage in an event of its own, {OPENAI}"),
  ("text stream, usage", r"(choices|usage|timings|\[DONE\]).*", f"usage in an event of its own, {OPENAI}"),
  ("text (stream|progress)", r"usage.*: .* there, nothing here", f"usage when it is asked for, {OPENAI}"),
  ("native to the end", r"tokens_predicted: 509 there, 510 here", "the context is filled to its end"),
  ("chat progress", r"(prompt_progress|choices\[\]\.delta)\..*", "the first event alone has the role"),
  ("native progress", r"tokens\[\]: .*", "no token is told before there is one"),
  (r"template [01]", r"prompt: .*", "the prompt's first token is shown; /completion does not add it twice"),
]
