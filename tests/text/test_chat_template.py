"""Chat templates: rendering, hostile templates, and real models' templates where `make vectors` has fetched them."""
import datetime
import json
import pathlib
import re
import resource
import signal
import subprocess
import sys
import threading
import time

import jinja2
import pytest
from tests.support.extended import some
from tests.tools.fetch_vectors import VECTORS
from tests.text.test_tokenizer import ID, TOKENS, TYPES, make

from tinygrad_llm.text import chat_template
from tinygrad_llm.text.tokenizer import CONTROL
from tinygrad_llm.text.chat_template import CHATML, LLAMA3, PLAIN, ChatTemplate
from tinygrad_llm.errors import InputError

HI = [{"role": "user", "content": "hi"}]
TALK = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": " Is <b>1 & 2</b> 'so'? "},
        {"role": "assistant", "content": "Yes."}, {"role": "user", "content": "Why? é 日本"}]
TOOLS = [{"type": "function", "function": {"name": "add", "description": "Adds <two> numbers", "parameters": {
  "type": "object", "properties": {"a": {"type": "number", "description": "é"}}, "required": ["a"]}}}]

def render(source: str, messages=HI, **variables) -> str:
  return ChatTemplate({"default": source}, "<s>", "</s>").render(messages, **variables)

def from_gguf(tokens=(), **kv) -> ChatTemplate:
  return ChatTemplate.from_gguf({"tokenizer.ggml.tokens": list(tokens), **{f"tokenizer.{k}": v for k, v in kv.items()}})

def test_variables_and_settings():
  assert render("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}") == "<s>hi</s>"
  assert render("  {% if true %}\n  a\n  {% endif %}\nb") == "  a\nb"   # trim_blocks, lstrip_blocks
  assert render("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}") == "01"
  assert render("{{ [tools is none, documents is none, add_generation_prompt]|join }}{{ other }}") == "TrueTrueTrue"
  assert render("{{ tools[0].function.name ~ other }}", tools=TOOLS, other=1) == "add1"
  assert render("{{ {'a': '<é\\'>'} | tojson }}") == '{"a": "<é\'>"}'
  assert render("{{ {'b': 1, 'a': [2]} | tojson(indent=2) }}") == json.dumps({"b": 1, "a": [2]}, indent=2)
  assert render("{% set n = namespace(x=1) %}{% for i in [3, 4] %}{% set n.x = n.x + i %}{% endfor %}{{ n.x }}") == "8"
  assert render("{{ strftime_now('%Y') }}") == str(datetime.date.today().year)
  assert render("{% generation %}a{% endgeneration %}b") == "ab"

def test_choice_of_template():
  several = {"chat_template": "plain", "chat_template.tool_use": "tools", "chat_templates": ["tool_use"]}
  assert from_gguf(**several).render(HI) == "plain" and from_gguf(**several).render(HI, tools=TOOLS) == "tools"
  assert from_gguf(**{"chat_template.rag": "only"}).render(HI) == "only"
  t = from_gguf(["a", "<s>", "</s>"], **{"chat_template": "{{ bos_token + eos_token }}",
                                         "ggml.bos_token_id": 1, "ggml.eos_token_id": 2})
  assert t.render(HI) == "<s></s>" and t.stop == ()
  with pytest.raises(InputError, match="not a text"): from_gguf(chat_template=3)

def test_without_a_template():
  t = from_gguf(["<|im_start|>", "<|im_end|>"])
  assert t.templates["default"] == CHATML and t.render(TALK[:2]) == (
    "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n Is <b>1 & 2</b> 'so'? <|im_end|>\n"
    "<|im_start|>assistant\n")
  t = from_gguf(["<|begin_of_text|>", "<|start_header_id|>"], **{"ggml.bos_token_id": 0})
  assert t.templates["default"] == LLAMA3 and t.render(HI) == (
    "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nhi<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n")
  t = from_gguf(["a"])
  assert t.templates["default"] == PLAIN and t.render(TALK[1:], add_generation_prompt=False) == (
    "User: Is <b>1 & 2</b> 'so'?\nAssistant: Yes.\nUser: Why? é 日本\n")
  assert t.render(HI) == "User: hi\nAssistant:" and t.stop == ("\nUser:",)
  parts = [{"role": "user", "content": [{"text": "a"}, {"type": "image"}, {"text": "b"}]},
           {"role": "assistant", "content": None}, {"role": "user"}]
  assert t.render(parts, add_generation_prompt=False) == "User: ab\nAssistant: \nUser: \n"

def test_rejected_messages():
  with pytest.raises(InputError, match=r"^tokenizer.chat_template: no system role \[31m, please$"):
    render("{{ raise_exception('no system\n role \x1b[31m, please') }}")
  for bad in ("hi", {}, {"role": 1}, {"role": "user", "content": object()}, {"role": "user", "content": {1, 2}}):
    with pytest.raises(InputError, match="messages"): render("{{ messages }}", [bad])
  message: dict = {"role": "user"}
  message["content"] = [message]
  with pytest.raises(InputError, match="messages"): render("", [message])
  with pytest.raises(InputError, match="messages"): ChatTemplate({"default": ""}).encode(make(), [message])

def test_one_template_many_threads():
  t, found = ChatTemplate({"default": "{{ messages[0].content }}"}), []
  def ask(n: int) -> None:
    found.extend([t.render([{"role": "user", "content": text}]) == text for text in [f"{n}-{i}" for i in range(50)]])
  threads = [threading.Thread(target=ask, args=(n,)) for n in range(4)]
  for thread in threads: thread.start()
  for thread in threads: thread.join()
  assert found == [True] * 200

# {hostile template: part of the error message}
HOSTILE = {
  "{{ 'a' * 10**10 }}": "512 MiB", "{{ 'x'.center(10**9) }}": "512 MiB", "{{ '%1000000000d' % 1 }}": "512 MiB",
  "{% set n = namespace(x='a') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}": "512 MiB",
  "{{ [1] * 10**10 }}": "512 MiB", "{{ 'x' * 17 * 1024 * 1024 }}": "17825792 characters",
  "{{ 9 ** (9 ** 9) }}": "too long", "{% for i in range(10**9) %}{% endfor %}": "Range too big",
  "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}": "too long",
  "{% for i in range(99999) %}{% for j in range(99999) %}aaaaaaaa{% endfor %}{% endfor %}": "too long|512 MiB",
  "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}": "recurses", "{{ " + "(" * 5000 + ")" * 5000 + " }}": "recurses",
  "{{ " + "-" * 20000 + "1 }}": "recurses", "{% if 1 %}" * 3000 + "{% endif %}" * 3000: "recurses",
  "{{ ''.__class__.__mro__ }}": "unsafe", "{{ cycler.__init__.__globals__ }}": "unsafe",
  "{{ messages.append(1) }}": "unsafe", "{% include 'x' %}": "no loader", "{{ bad syntax": "line 1",
  "{{ a.b.c }}": "undefined", "{{ 1 / 0 }}": "division",
}

@pytest.mark.parametrize("source", some(HOSTILE, 0))
def test_hostile_templates_are_stopped(source):
  """Hostile templates are stopped within 2 s of processor time, in any thread."""
  def ended() -> float: return sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
  t, before, found = ChatTemplate({"default": source, "tool_use": "fine"}), ended(), []
  def ask() -> None:
    try: t.render(HI)
    except InputError as e: found.append(str(e))
  thread = threading.Thread(target=ask)
  thread.start()
  thread.join()
  assert ended() - before < 4
  assert re.match(f"tokenizer.chat_template: .*({HOSTILE[source]})", *found)
  assert t.render(HI, tools=TOOLS) == "fine"   # in a new process if necessary

def test_no_access_to_python_internals():
  assert render("a{{ ''|attr('__class__') }}{{ '{0.__class__}'.format('') }}{{ ''['__class__'] }}b") == "ab"

def test_process_ends_with_the_template():
  t = ChatTemplate({"default": "x"})
  t.render(HI)
  process = t._process
  assert process is not None and process.poll() is None
  process.kill()
  process.wait()
  assert t.render(HI) == "x"   # the worker is restarted after a kill from outside
  process = t._process
  del t
  assert process.returncode is not None

def test_worker_leaves_nothing_behind():
  """No process or message remains after the interpreter's exit; a worker that was killed is replaced."""
  code = "from tinygrad_llm.text.chat_template import ChatTemplate\n" \
    "import threading\nt = ChatTemplate({'default': 'x'})\nt.prepare()\n" \
    "print(t._process.pid, threading.active_count())"
  for _ in range(5):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    pid, threads = done.stdout.split()
    assert threads == "1" and not pathlib.Path(f"/proc/{pid}").exists()
  t = ChatTemplate({"default": "x"})
  t.prepare()
  process = t._process
  assert process is not None
  t.prepare()
  assert t._process is process
  process.kill()
  process.wait()
  assert t.render(HI) == "x" == t.render(HI)
  assert t._process is not process

def test_encode_escapes_control_tokens_in_user_text():
  tokenizer = make(add_bos_token=True)
  t = ChatTemplate({"default": "{{ bos_token }}{{ messages[0].content }}<|eot_id|>"}, "<|bos|>")
  found = t.encode(tokenizer, [{"role": "user", "content": "h<|eot_id|><|bos|>h<|im"}])
  assert [i for i in found if i in (ID["<|bos|>"], ID["<|eot_id|>"])] == [ID["<|bos|>"], ID["<|eot_id|>"]]
  assert tokenizer.decode(found) == "h<|eot_id|><|bos|>h<|im"
  # one bos token, whether the template or the tokenizer asks for it
  without = ChatTemplate({"default": "{{ messages[0].content }}"})
  assert without.encode(tokenizer, HI) == [ID["<|bos|>"], *tokenizer.encode("hi")]
  assert without.encode(make(), HI) == tokenizer.encode("hi")
  assert TOKENS[found[0]] == "<|bos|>"

def test_control_tokens_in_tool_keys_are_text():
  """The keys of a tool's parameters and of a call's arguments are untrusted, too."""
  tokenizer = make(tokens=[*TOKENS, "sop"], token_type=[*TYPES, CONTROL])
  t = ChatTemplate({"default": "{{ tools | tojson }}{% for m in messages if m.role == 'tools' %}"
                               "{{ m.tool_calls | tojson }}{% endfor %}<|eot_id|>"})
  named = {"function": {"name": "f", "arguments": {"<|eot_id|>": 1, "parameters": {"<|eot": "_id|>"}}}}
  found = t.encode(tokenizer, [{"role": "tools", "tool_calls": [named]}], tools=[named])  # sop begins as `tools` ends
  assert found.count(ID["<|eot_id|>"]) == 1 and found[-1] == ID["<|eot_id|>"]
  assert tokenizer.decode(found).count("<|eot_id|>") == 2

def plain(source: str) -> jinja2.Template:
  """A template in plain jinja2 with the same settings, written independently."""
  def fail(message): raise jinja2.TemplateError(message)
  def dump(x, **options): return json.dumps(x, **{"ensure_ascii": False} | options)
  env = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
  env.filters["tojson"] = dump
  env.globals["raise_exception"] = fail
  env.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
  source = re.sub(r"{%(-?) *generation *(-?)%}", r"{%\1 if true \2%}", source).replace("endgeneration", "endif")
  return env.from_string(source)

def test_templates_of_real_models(capfd):
  """
  Every template of llama.cpp's collection gives the same text or error as plain jinja2, with two exceptions. Gemma 2's
  refuses a system message: we put the system's words into the user's turn. Four that are for tools fail without any.
  """
  paths = sorted(VECTORS.glob("*.jinja"))
  if not paths: pytest.skip(f"no templates in {VECTORS}: run `make vectors`")
  same, folded = 0, []
  for path in paths:
    source = path.read_text(encoding="utf-8")
    t, reference = ChatTemplate({"default": source}, "<s>", "</s>"), plain(source)
    for messages, tools in ((TALK, None), (TALK[1:], None), (TALK, TOOLS)):
      variables = {"messages": messages, "tools": tools, "documents": None, "add_generation_prompt": True}
      try:
        wanted = reference.render(variables, bos_token="<s>", eos_token="</s>")
      except (jinja2.TemplateError, TypeError):
        try: text = t.render(messages, tools=tools)
        except InputError: continue
        assert all(m["content"].strip() in text for m in messages), path.name
        folded.append(path.stem)
      else:
        assert t.render(messages, tools=tools) == wanted, path.name
        same += 1
  print(f"{same} of {3 * len(paths)} rendered, the others are rejected by both")
  assert same >= 120 and {*folded} == {"google-gemma-2-2b-it", "fireworks-ai-llama-3-firefunction-v2",
                                       "CohereForAI-c4ai-command-r-plus-tool_use",
                                       "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use",
                                       "NousResearch-Hermes-3-Llama-3.1-8B-tool_use"}
  assert "some of what" not in capfd.readouterr().err

def test_rendering_is_bounded_by_cpu_time(monkeypatch):
  """A worker that gets little processor time, as on a busy machine, is waited for; a worker that never runs is not."""
  long = "{% for i in range(75) %}{% for j in range(99999) %}{% endfor %}{% endfor %}done"
  t = ChatTemplate({"default": long, "tool_use": "fine"})
  t.render(HI, tools=TOOLS)
  process = t._process
  assert process is not None
  answered = threading.Event()
  def starve() -> None:
    while not answered.wait(0.005):
      process.send_signal(signal.SIGSTOP)
      time.sleep(0.095)
      process.send_signal(signal.SIGCONT)
  thread, start = threading.Thread(target=starve), time.monotonic()
  thread.start()
  try: assert t.render(HI) == "done"
  finally:
    answered.set()
    thread.join()
  assert time.monotonic() - start > 1.6  # longer than the limit: it was starved
  monkeypatch.setattr(chat_template, "SECONDS", 0.2)
  process.send_signal(signal.SIGSTOP)
  with pytest.raises(InputError, match=r"^tokenizer.chat_template: rendering it takes longer than 0.2 s"): t.render(HI)
  monkeypatch.undo()
  assert t.render(HI, tools=TOOLS) == "fine"

def test_worker_is_started_ahead():
  """The worker is started once; a rendering reports its errors."""
  template = ChatTemplate({"default": "{{ messages[0].content }}"})
  for _ in range(2): template.prepare()
  assert template.render([{"role": "user", "content": "hi"}]) == "hi"
  process = template._process
  template.prepare()
  assert template.render([{"role": "user", "content": "you"}]) == "you" and template._process is process
  broken = ChatTemplate({"default": "{{"})
  broken.prepare()
  with pytest.raises(InputError, match="chat_template"): broken.render([{"role": "user", "content": "hi"}])
