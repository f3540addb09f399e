"""A template loses no word of a conversation: the conversation is rearranged, or refused with the role's name."""
import html
import itertools
import random
import re

import pytest
from tests.support.scripted_gguf import build
import tinygrad_llm
from tinygrad_llm.errors import InputError
from tinygrad_llm.text.chat_template import ChatTemplate, checked
from tinygrad_llm.text.thinking import TAGS

LOOP, END = "{% for m in messages %}", "{% endfor %}"
PARTS = "{% for p in m.content %}{% if p.type == 'text' %}{{ p.text }}{% endif %}{% endfor %}"
SHOWN = "{{ m.role }}: {{ m.content }}\n"
ALTERNATE = ("{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
             "{{ raise_exception('roles must alternate') }}{% endif %}")
# ways in which templates treat words; each occurs in real files
TEMPLATES = {
  "plain": LOOP + SHOWN + END,
  "content as parts": LOOP + "{{ m.role }}: " + PARTS + "\n" + END,
  "content as parts for the user": LOOP + "{% if m.role == 'user' %}" + PARTS +
                                   "{% else %}{{ m.content }}{% endif %}" + END,
  "no place for a system message": LOOP + "{% if m.role != 'system' %}" + SHOWN + "{% endif %}" + END,
  "refuses a system message": LOOP + "{% if m.role == 'system' %}{{ raise_exception('System role not supported') }}"
                              "{% endif %}" + SHOWN + END,
  "turns alternate": LOOP + ALTERNATE + SHOWN + END,
  "no system message, turns alternate": LOOP + "{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}" +
                                        ALTERNATE + SHOWN + END,
  "leaves out the first": "{% for m in messages[1:] %}" + SHOWN + END,
  "upper case, trimmed": LOOP + "{{ m.content | trim | upper }}" + END,
  "as JSON": LOOP + "{{ m | tojson }}" + END,
  "escaped": LOOP + "{{ m.content | e }}" + END,
  "no system message, content as parts": LOOP + "{% if m.role != 'system' %}" + PARTS + "{% endif %}" + END,
}
WORDS = ["Hello", "Be brief, please.", " <b>1 & 2</b> 'so'? ", "{{ 7 * 7 }} {% x %}", "日本 é", "A\nB", '"quoted"', "0"]

def squeezed(text: str) -> str:
  text = html.unescape(text).replace("\\n", "\n").replace('\\"', '"')
  return re.sub(r"\s+", "", text.lower())

@pytest.mark.parametrize("name", TEMPLATES)
def test_every_word_is_rendered(name):
  """All usual orders of roles, with and without a system message, with contents as texts and as parts."""
  t, rng = ChatTemplate({"default": TEMPLATES[name]}, "<s>", "</s>"), random.Random(name)
  shapes = [("user",), ("system", "user"), ("system", "user", "assistant", "user"), ("user", "assistant", "user"),
            ("user", "user"), ("system", "user", "assistant", "user", "user"),
            ("user", "assistant", "user", "assistant")]
  for roles, parts in itertools.product(shapes, (False, True)):
    said = [rng.choice(WORDS) for _ in roles]
    texts: list = [[{"type": "text", "text": x}] if parts else x for x in said]
    try: text = t.render([{"role": r, "content": c} for r, c in zip(roles, texts)])
    except InputError as e:  # a conversation that no way fits is refused with the role's name
      assert name == "leaves out the first" and "role 'user'" in str(e)
      continue
    for x in said: assert squeezed(x) in squeezed(text), (name, roles, x, text)

@pytest.mark.parametrize("source, role", [
  (LOOP + "{% if m.role == 'user' %}{{ m.content }}{% endif %}" + END, "assistant"),
  ("{{ messages[-1].content }}", "user"), (LOOP + "{{ m.role }}" + END, "user"),
  (LOOP + "{% if m.role == 'assistant' %}{{ raise_exception('one turn only') }}{% endif %}{{ m.content }}" + END,
   "assistant")])
def test_refusal_names_the_message(source, role):
  talk = [{"role": r, "content": x} for r, x in (("user", "one"), ("assistant", "two"), ("user", "three"))]
  with pytest.raises(InputError, match=f"messages.*role '{role}'"): ChatTemplate({"default": source}).render(talk)

def test_warning_text(capfd):
  t = ChatTemplate({"default": TEMPLATES["refuses a system message"]})
  talk = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
  assert t.render(talk) == t.render(talk) == "user: Be brief.\n\nHi\n"
  said = capfd.readouterr().err
  assert said.count("\n") == 1 and "no system message" in said
  assert ChatTemplate({"default": TEMPLATES["content as parts"]}).render(talk[1:]) == "user: Hi"
  assert capfd.readouterr().err == ""  # no warning: the same words at the same place

def test_unusual_content_types():
  say = {name: ChatTemplate({"default": TEMPLATES[name]}).render for name in ("plain", "content as parts")}
  for content in (["one", "two"], [{"type": "text", "text": "one"}, "two"]):  # texts among parts
    talk = [{"role": "user", "content": content}]
    assert say["plain"](talk) == "user: one\ntwo\n" and say["content as parts"](talk) == "user: onetwo"
  stripped = ChatTemplate({"default": LOOP + "{{ m.content.strip() }}|" + END})
  for nothing in ({"role": "assistant"}, {"role": "assistant", "content": None}):  # as beside tool calls
    assert stripped.render([{"role": "user", "content": "a"}, nothing, {"role": "user", "content": "b"}]) == "a||b|"
  assert say["plain"]([{"role": "user", "content": 5}]) == "user: 5\n"

CALL = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "add", "arguments": {"a": 1}}}]}

def test_warns_about_dropped_tools_and_calls(capfd):
  talk, tools = [{"role": "user", "content": "hi"}, CALL], [{"type": "function", "function": {"name": "add"}}]
  shown = "{{ tools | tojson }}" + LOOP + "{{ m | tojson }}" + END
  ChatTemplate({"default": shown}).render(talk, tools=tools)
  assert capfd.readouterr().err == ""
  ChatTemplate({"default": TEMPLATES["plain"]}).render(talk, tools=tools)
  said = capfd.readouterr().err
  assert "1 of 1 tools;" in said and "1 of 1 tool calls;" in said and said.count("\n") == 2

@pytest.mark.parametrize("cut", ["[:12]", ".splitlines()[0]", ".split()[0]", " | truncate(20)", "[-12:]"])
def test_warns_about_truncated_text(capfd, cut):
  t, long = ChatTemplate({"default": LOOP + "{{ m.content" + cut + " }}" + END}), "one two three four\nfive six seven"
  t.render([{"role": "user", "content": "hi"}])
  assert capfd.readouterr().err == ""
  t.render([{"role": "user", "content": long}])
  assert "some of what messages[0], role 'user', says" in capfd.readouterr().err

@pytest.mark.parametrize("shown", [" | upper", " | trim", " | e", " | tojson", " | tojson(ensure_ascii=true)",
                                   " | title", ".split('</think>')[-1]", " | replace('/no_think', '')"])
def test_no_warning_for_respelt_text(capfd, shown):
  """
  A text in another spelling is not reported as lost, nor a flag that switches thinking, nor an assistant's thinking.
  """
  text = ' \u00c9 "Str\u00e4\u00dfe" <b>1 & 2</b>\n\u65e5\u672c\t{{ x }} \\ it\'s /no_think '
  talk = [{"role": "user", "content": text}, {"role": "assistant", "content": "<think>long thoughts</think>Yes."}]
  ChatTemplate({"default": LOOP + "{{ m.content" + shown + " }}" + END}).render(talk)
  assert capfd.readouterr().err == ""

def test_mark_between_thinking_and_answer():
  """Kimi K3 closes all parts of an answer with the same mark."""
  turn = ("{% if m.reasoning_content %}<|open|>think{{ m.reasoning_content }}<|close|>{% endif %}"
          "<|open|>say{{ m.content }}<|close|>")
  assert ChatTemplate({"default": LOOP + turn + END}).after_answer() == ""
  assert ChatTemplate({"default": LOOP + "{{ m.content }}<|close|>" + END}).after_answer() == "<|close|>"
  assert ChatTemplate({"default": LOOP + "{{ m.content | upper }} </s>" + END}).after_answer() == " </s>"

def test_no_warning_for_removed_thinking():
  source = (LOOP + "{% if m.role == 'assistant' %}{{ m.content.split('</think>')[-1] }}"
            "{% else %}{{ m.content }}{% endif %}" + END)
  talk = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "<think>b</think>c"}]
  assert ChatTemplate({"default": source}).render(talk) == "ac"

def test_empty_content():
  for content in ("", None, []):
    talk = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": content}]
    for name in ("plain", "content as parts", "turns alternate"):
      if content != "" and name == "content as parts": continue
      assert "hi" in ChatTemplate({"default": TEMPLATES[name]}).render(talk)

def test_thinking_switches():
  def of(source): return ChatTemplate({"default": LOOP + "{{ m.content }}" + END + source})
  assert of("{% if enable_thinking %}x{% endif %}").thinking(False) == {"enable_thinking": False}
  assert of("{% if enable_thinking %}x{% endif %}").thinking(True) == {"enable_thinking": True}
  assert of("{{ reasoning_effort }}").thinking(False) == {"reasoning_effort": "low"}
  for none in ("none", "no_think"):
    source = "{% if reasoning_effort == '" + none + "' %}x{% endif %}"
    assert of(source).thinking(False) == {"reasoning_effort": none} and of(source).thinking(True) == {}
  assert [of("{{ thinking_mode }}").thinking(x)["thinking_mode"] for x in (False, True)] == ["disabled", "enabled"]
  assert of("").thinking(False) == of("").thinking(True) == {}
  for tag, close in TAGS.items():
    t = of(tag + "\n")
    assert t.thinking(False) == {"enable_thinking": False}
    assert t.render([{"role": "user", "content": "hi"}], enable_thinking=False) == f"hi{tag}\n\n{close}\n\n"
  assert of("{{ tools[0] + 1 }}").thinking(False) == {}  # rendering will report the error
  assert of("{{ tools }}{{ style }}").variables() >= {"messages", "tools", "style"}

def test_template_that_needs_tools_gets_none():
  """A template that fails without tools or documents gets empty ones, and keeps what is given."""
  source = (LOOP + "{{ m.content }}" + END + "{% for t in tools %}[{{ t.name }}]{% endfor %}"
            "{% for d in documents %}({{ d.text }}){% endfor %}{{ ';' + functions + ';' + datetime }}")
  say, today = [{"role": "user", "content": "hi"}], r"\d{4}-\d\d-\d\d$"
  def render(**given) -> str: return ChatTemplate({"default": source}).render(say, **given)
  assert re.match(r"hi;\[\];" + today, render())
  assert re.match(r"hi\[f\]\(x\);\[.*f.*\];" + today, render(tools=[{"name": "f"}], documents=[{"text": "x"}]))
  assert render(datetime="now", functions="") == "hi;;now"
  with pytest.raises(InputError, match="NoneType"):  # the first error counts
    ChatTemplate({"default": source + "{{ other + 'a' }}"}).render(say)

def test_caller_variables(tmp_path):
  build(tmp_path / "m.gguf", ["x"], template=LOOP + "{{ m.content }}" + END + "{{ mood }}")
  llm, say = tinygrad_llm.load(str(tmp_path / "m.gguf")), [{"role": "user", "content": "hi"}]
  assert llm.tokenizer.decode(llm.prompt(say, template={"mood": "glad"})) == "higlad"
  for wrong in ({"messages": []}, {"a b": 1}, {1: 2}, "x"):
    with pytest.raises(InputError, match="template"): checked(wrong)
