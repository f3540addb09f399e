"""/v1/completions, llama-server's own routes, and embeddings."""
import base64
import json
import random

import numpy as np
import openai
import pytest
from tests.support.served import served

@pytest.fixture(scope="module")
def server():
  with served() as found: yield found

def ids_of(server, text):
  tokenizer = server.service.llm.tokenizer
  return ([tokenizer.bos] if tokenizer.add_bos else []) + tokenizer.encode(text)

def greedy(server, ids, count): return server.service.llm.tokenizer.decode([*server.service.llm.generate(ids, count)])

def create(server, **body): return server.openai().completions.create(model="any", temperature=0, **body)

def test_prompts_of_each_kind(server):
  texts = ["Once upon", "The king"]
  ids = [ids_of(server, text) for text in texts]
  want = [greedy(server, each, 6) for each in ids]
  prompts = [(texts[0], want[:1]), (ids[0], want[:1]), (texts, want), (ids, want), ([texts[0], ids[1]], want)]
  for prompt, found in prompts:
    answer = create(server, prompt=prompt, max_tokens=6)
    assert [c.text.strip() for c in answer.choices] == [w.strip() for w in found]
    assert [c.index for c in answer.choices] == [*range(len(found))]
    assert answer.usage.completion_tokens == 6 * len(found)
    assert answer.usage.prompt_tokens == sum(map(len, ids[:len(found)]))

def test_sixteen_tokens_unless_told(server): assert create(server, prompt="Once").usage.completion_tokens == 16

def test_stream(server):
  want = create(server, prompt="Once upon", max_tokens=9).choices[0].text
  chunks = [*create(server, prompt="Once upon", max_tokens=9, stream=True, stream_options={"include_usage": True})]
  assert "".join(c.choices[0].text for c in chunks[:-1]) == want and chunks[-1].usage.completion_tokens == 9
  assert chunks[-2].choices[0].finish_reason == "length"
  several, texts = create(server, prompt=["Once upon", "Once upon"], n=2, max_tokens=9, stream=True), {}
  for chunk in several: texts[chunk.choices[0].index] = texts.get(chunk.choices[0].index, "") + chunk.choices[0].text
  assert texts == dict.fromkeys(range(4), want)

def test_probabilities_of_a_prompt(server):
  """echo with logprobs and no new token: how evaluations score a text."""
  text, llm = "Once upon a time there was a fox.", server.service.llm
  ids = ids_of(server, text)
  rows = llm.logits(ids).astype(np.float64)
  rows -= rows.max(1, keepdims=True)
  want = rows - np.log(np.exp(rows).sum(1, keepdims=True))
  choice = create(server, prompt=text, max_tokens=0, echo=True, logprobs=2).choices[0]
  assert choice.text.strip() == text and len(choice.logprobs.tokens) == len(ids)
  assert choice.logprobs.token_logprobs[0] is None and choice.logprobs.top_logprobs[0] is None
  found = np.array(choice.logprobs.token_logprobs[1:])
  np.testing.assert_allclose(found, [want[i, token] for i, token in enumerate(ids[1:])], atol=1e-4)
  for i, top in enumerate(choice.logprobs.top_logprobs[1:]):
    assert len(top) == 2 and abs(max(top.values()) - want[i].max()) < 1e-4
  more = create(server, prompt=text, max_tokens=3, echo=True, logprobs=1).choices[0]
  assert len(more.logprobs.tokens) == len(ids) + 3 and more.text.startswith(choice.text)
  assert more.logprobs.text_offset == [sum(map(len, more.logprobs.tokens[:i])) for i in range(len(ids) + 3)]

def test_probabilities_of_many_prompts(server):
  """As an evaluation asks for them: batches of token ids, one new token each, that is left out."""
  llm = server.service.llm
  texts = ["The king sat on his throne.", "A bird", "The fox ran to the river to drink", "It was", "She opened a door."]
  prompts = [ids_of(server, text) for text in random.sample(texts, 5)]
  body = {"prompt": prompts, "max_tokens": 1, "temperature": 0, "logprobs": 1, "seed": 1234, "echo": True}
  choices = sorted(server.post("/v1/completions", body).json()["choices"], key=lambda choice: choice["index"])
  for ids, choice in zip(prompts, choices, strict=True):
    rows = llm.logits(ids).astype(np.float64)
    want = [rows[i, token] - rows[i].max() - np.log(np.exp(rows[i] - rows[i].max()).sum())
            for i, token in enumerate(ids[1:])]
    np.testing.assert_allclose(choice["logprobs"]["token_logprobs"][1:-1], want, atol=1e-4)
    greedy = [max(top.values()) == found for found, top in zip(choice["logprobs"]["token_logprobs"][1:-1],
                                                               choice["logprobs"]["top_logprobs"][1:-1])]
    assert greedy == [rows[i].argmax() == token for i, token in enumerate(ids[1:])]
  assert len(choices[0]["logprobs"]["tokens"]) == len(prompts[0]) + 1

@pytest.mark.parametrize("stream", [False, True])
def test_end_token_is_listed(server, stream):
  """An answer of no tokens lists its end token, so that evaluations may leave out the last place."""
  tokenizer = server.service.llm.tokenizer
  end = min(tokenizer.stop_ids)
  body = {"prompt": "Once upon", "max_tokens": 1, "logprobs": 1, "logit_bias": {str(end): 100}}
  if stream:
    chunks = [*create(server, **body, stream=True)]
    choices = [c.choices[0] for c in chunks]
  else: choices = [create(server, **body, echo=True).choices[0]]
  assert choices[-1].finish_reason == "stop"
  tokens = [token for choice in choices for token in choice.logprobs.tokens]
  assert tokens[-1] == tokenizer.shown_bytes(end).decode()
  assert len(tokens) == 1 + (0 if stream else len(ids_of(server, "Once upon")))
  if not stream: assert choices[0].text.strip() == "Once upon"
  chat = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "logprobs": True,
                                              "logit_bias": body["logit_bias"], "temperature": 0}).json()
  assert chat["choices"][0]["logprobs"]["content"] == [] and not chat["choices"][0]["message"]["content"]

@pytest.mark.parametrize("field,value", [("suffix", "x"), ("best_of", 3), ("prompt", []), ("prompt", [[1], 2]),
                                         ("prompt", [10**9]), ("prompt", [[]]), ("logprobs", 50), ("max_tokens", -5)])
def test_wrong_values_name_the_field(server, field, value):
  r = server.post("/v1/completions", {"prompt": "Once", field: value})
  if field == "max_tokens": return  # as -1: until the answer ends
  assert r.status_code == 400 and r.json()["error"]["param"].split("[")[0] == field, r.text

# *** llama-server's routes

def test_native_completion(server):
  want = greedy(server, ids_of(server, "Once upon"), 7)
  body = {"prompt": "Once upon", "n_predict": 7, "temperature": 0}
  found = server.post("/completion", body | {"n_probs": 2, "return_tokens": True}).json()
  assert found["content"].strip() == want.strip() and found["stop"] and found["stop_type"] == "limit"
  assert found["tokens_predicted"] == len(found["tokens"]) == 7 and found["timings"]["predicted_n"] == 7
  assert len(found["completion_probabilities"]) == 7 and len(found["completion_probabilities"][0]["top_logprobs"]) == 2
  with server.http.stream("POST", "/completion", json=body | {"stream": True}) as r:
    events = [json.loads(line[6:]) for line in r.iter_lines() if line.startswith("data: ")]
  assert "".join(e["content"] for e in events) == found["content"] and [e["stop"] for e in events].count(True) == 1
  assert len(server.post("/completion", body | {"prompt": ["Once", "The"]}).json()) == 2

def test_native_prompts_and_fields(server):
  """Texts and ids mixed are one prompt; a list of prompts has an index each; chosen fields come alone."""
  body, tokenizer = {"n_predict": 4, "temperature": 0, "ignore_eos": True}, server.service.llm.tokenizer
  ids = ids_of(server, "Once")
  want = server.post("/completion", body | {"prompt": [*ids, 5, *tokenizer.encode(" upon")]}).json()
  mixed = server.post("/completion", body | {"prompt": ["Once", 5, " upon"]}).json()
  assert [mixed[key] for key in ("content", "prompt", "tokens_evaluated")] == \
         [want[key] for key in ("content", "prompt", "tokens_evaluated")]
  plain = server.post("/completion", body | {"prompt": "Once"}).json()["content"]
  several = server.post("/completion", body | {"prompt": [{"prompt_string": "Once"}, ["Once", 5, " upon"], ids]}).json()
  assert [(x["index"], x["content"]) for x in several] == [(0, plain), (1, want["content"]), (2, plain)]
  fields = ["content", "timings/predicted_n", "generation_settings/n_predict", "absent/key"]
  found = server.post("/completion", body | {"prompt": "Once", "response_fields": fields}).json()
  assert found == {"content": plain, "timings/predicted_n": 4, "generation_settings/n_predict": 4}

@pytest.mark.parametrize("prompt", [{}, {"prompt_string": 5}, ["Once", 5, None], [["Once", 5, {}]],
                                    {"prompt_string": "x", "multimodal_data": ["AAAA"]}])
def test_wrong_native_prompts(server, prompt):
  r = server.post("/completion", {"prompt": prompt, "n_predict": 1})
  assert r.status_code == 400 and r.json()["error"]["param"].startswith("prompt"), r.text

def test_stop_string_ends_the_counts(server):
  """Tokens that were made beyond a stop string are not counted, and the string is named."""
  body = {"prompt": "Once upon", "temperature": 0, "ignore_eos": True}
  ids = server.post("/completion", body | {"n_predict": 12, "return_tokens": True}).json()["tokens"]
  texts = [server.service.llm.tokenizer.decode(ids[:i]) for i in range(len(ids) + 1)]
  stop = ["no such text", texts[-1].strip()[3]]
  count = next(i for i, text in enumerate(texts) if stop[1] in text)
  found = server.post("/completion", body | {"n_predict": 100, "stop": stop, "return_tokens": True}).json()
  assert (found["stop_type"], found["stopping_word"]) == ("word", stop[1])
  assert found["tokens_predicted"] == found["timings"]["predicted_n"] == len(found["tokens"]) == count < 12
  assert create(server, prompt="Once upon", max_tokens=100, stop=stop).usage.completion_tokens == count

def test_bias_of_texts(server):
  """A list may name tokens by their texts, as llama-server has it."""
  body = {"prompt": "Once upon", "temperature": 0, "ignore_eos": True, "n_predict": 12, "return_tokens": True}
  ids = server.post("/completion", body).json()["tokens"]
  token = next(i for i in ids if server.service.llm.tokenizer.encode(server.service.llm.tokenizer.decode([i])) == [i])
  text = server.service.llm.tokenizer.decode([token])
  for bias in ([[text, False]], [[text, -100]], [[token, False]]):
    assert token in ids and token not in server.post("/completion", body | {"logit_bias": bias}).json()["tokens"]

def test_truncated_by_the_context(server):
  body = {"prompt": "Once upon", "temperature": 0, "ignore_eos": True}
  found = server.post("/completion", body | {"n_predict": -1}).json()
  assert found["truncated"] and found["stop_type"] == "limit"
  assert found["tokens_evaluated"] + found["tokens_predicted"] >= server.service.llm.max_context
  assert not server.post("/completion", body | {"n_predict": 2}).json()["truncated"]

def test_tokens_and_texts(server):
  text, tokenizer = "Once upon a time \u00e9", server.service.llm.tokenizer
  tokens = server.post("/tokenize", {"content": text}).json()["tokens"]
  assert tokens == tokenizer.encode(text)
  assert server.post("/tokenize", {"content": text, "add_special": True}).json()["tokens"] == ids_of(server, text)
  assert server.post("/detokenize", {"tokens": tokens}).json()["content"].strip() == text
  pieces = server.post("/tokenize", {"content": text, "with_pieces": True}).json()["tokens"]
  raw = b"".join(bytes(p["piece"]) if isinstance(p["piece"], list) else p["piece"].encode() for p in pieces)
  assert raw.decode().strip() == text and [p["id"] for p in pieces] == tokens
  assert server.post("/tokenize", {"content": 5}).status_code == 400
  assert server.post("/detokenize", {}).json()["content"] == ""
  assert server.post("/tokenize", {"prompt": text}).json()["tokens"] == ids_of(server, text)  # vLLM's words
  assert server.post("/tokenize", {"prompt": text, "add_special_tokens": False}).json()["tokens"] == tokens
  mixed = server.post("/tokenize", {"content": ["Once", 5, " upon"]}).json()["tokens"]
  assert mixed == [*tokenizer.encode("Once"), 5, *tokenizer.encode(" upon")]

def test_tokenizer_info(server):
  """Evaluations find the texts of the first and the last token, and encode them."""
  found, tokenizer = server.http.get("/tokenizer_info").json(), server.service.llm.tokenizer
  def encoded(text): return server.post("/tokenize", {"prompt": text, "add_special_tokens": False}).json()["tokens"]
  assert encoded(found["bos_token"]) == [tokenizer.bos] and {*encoded(found["eos_token"])} <= tokenizer.stop_ids
  assert found["chat_template"] == server.service.llm.template.templates["default"]

def test_template(server):
  messages = [{"role": "user", "content": "Tell me about a fox."}]
  prompt = server.post("/apply-template", {"messages": messages}).json()["prompt"]
  llm = server.service.llm
  assert llm.tokenizer.encode(prompt, parse_special=True)[-6:] == llm.prompt(messages)[-6:]

def test_facts(server):
  llm, client = server.service.llm, server.openai()
  assert [m.id for m in client.models.list()] == ["tiny"] and client.models.retrieve("tiny").id == "tiny"
  with pytest.raises(openai.NotFoundError): client.models.retrieve("other")
  props = server.http.get("/props").json()
  assert props["default_generation_settings"]["n_ctx"] == llm.max_context and props["total_slots"] == 4
  assert props["chat_template"] and props["modalities"] == {"vision": False, "audio": False}
  assert server.http.get("/version").json() == {"version": "0"}

def test_metrics(server):
  def value(name):
    lines = server.http.get("/metrics").text.splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith(f"tinygrad_llm:{name} ")))
  names = ("generation_tokens_total", "prompt_tokens_total", "time_to_first_token_seconds_count",
           "request_decode_time_seconds_count", 'request_success_total{finished_reason="length"}')
  before = [value(name) for name in names]
  usage = create(server, prompt="A new prompt of this test", max_tokens=5, extra_body={"ignore_eos": True}).usage
  assert [value(name) - b for name, b in zip(names, before)] == [5, usage.prompt_tokens, 1, 1, 1]
  assert value("num_requests_running") == value("num_requests_waiting") == 0 and value("kv_blocks_total") > 0

# *** embeddings

def test_embeddings(server):
  texts, client = ["a fox", "a boat and a king"], server.openai()
  want = server.service.llm.embed(texts)
  plain = client.embeddings.create(model="any", input=texts, encoding_format="float")
  packed = client.embeddings.create(model="any", input=texts)  # this client asks for base64
  for found in (plain, packed): np.testing.assert_allclose([e.embedding for e in found.data], want, atol=1e-6)
  assert plain.usage.prompt_tokens == sum(len(server.service.llm.pooling.ids(text)) for text in texts)
  raw = server.post("/v1/embeddings", {"input": texts[0], "encoding_format": "base64"}).json()["data"][0]["embedding"]
  np.testing.assert_allclose(np.frombuffer(base64.b64decode(raw), "<f4"), want[0], atol=1e-6)
  ids = [server.service.llm.pooling.ids(text) for text in texts]
  again = client.embeddings.create(model="any", input=ids, encoding_format="float")
  np.testing.assert_allclose([e.embedding for e in again.data], want, atol=1e-6)
  native = server.post("/embedding", {"content": texts}).json()
  np.testing.assert_allclose([e["embedding"][0] for e in native], want, atol=1e-6)

@pytest.mark.parametrize("body", [{"input": ""}, {"input": []}, {"input": ["a", ""]}, {"input": "a", "dimensions": 5},
                                  {"input": "a", "encoding_format": "int8"}, {}, {"input": [10**9]}])
def test_wrong_embeddings(server, body): assert server.post("/v1/embeddings", body).status_code == 400
