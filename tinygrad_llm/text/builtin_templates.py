"""
Chat templates for files without one of their own, and for files whose template is only the name of one.

llama.cpp knows some templates by name, and some files carry such a name (`chatml`) instead of jinja2 source. The names
are llama.cpp's; the formats are the ones that the models' makers publish. PLAIN is ours. A message's content may be a
text or a list of parts. tests/text/test_builtin_templates.py has llama.cpp's output for the same messages.
"""
from __future__ import annotations

_CONTENT = ("{% set text = m.content or '' if m.content is not iterable or m.content is string"
            " else m.content | selectattr('text', 'defined') | map(attribute='text') | join %}")

def _turns(turn: str, answer: str, before: str = "", trim: bool = False) -> str:
  """A template's source. turn: a jinja2 expression of `m.role`, `text` and `loop`; answer: begins the assistant's."""
  trimmed = "{% set text = text | trim %}" if trim else ""
  return (f"{before}{{% for m in messages %}}{_CONTENT}{trimmed}{{{{ {turn} }}}}{{% endfor %}}"
          f"{{% if add_generation_prompt %}}{{{{ '{answer}' }}}}{{% endif %}}")

def _by_role(system: str, user: str, assistant: str) -> str:
  return f"{system} if m.role == 'system' else {assistant} if m.role == 'assistant' else {user}"

CHATML = _turns("'<|im_start|>' + m.role + '\n' + text + '<|im_end|>\n'", "<|im_start|>assistant\n")
LLAMA3 = _turns("'<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' + text + '<|eot_id|>'",
                "<|start_header_id|>assistant<|end_header_id|>\n\n", "{{ bos_token }}", trim=True)
PLAIN = _turns("m.role | capitalize + ': ' + text + '\n'", "Assistant:", trim=True)

def _mistral(space: str, gap: str, trim: bool = False) -> str:
  """A Mistral template: [INST] begins the first message after an answer, whether the system's or the user's."""
  begins = f"('{space}[INST]{gap}' if loop.first or loop.previtem.role == 'assistant' else '')"
  said = "(text | trim)" if trim else "text"
  return _turns(_by_role(f"{begins} + text + '\n\n'", f"{begins} + text + '{space}[/INST]'",
                         f"'{gap}' + {said} + '</s>'"), "", "{{ bos_token }}")

def _mistral7(gap: str) -> str:
  return _turns(_by_role(f"'[SYSTEM_PROMPT]{gap}' + text + '[/SYSTEM_PROMPT]'", f"'[INST]{gap}' + text + '[/INST]'",
                         f"'{gap}' + text + '</s>'"), "", "{{ bos_token }}")

def _llama2(system: str, again: str = "[INST] ", trim: bool = False) -> str:
  begins = f"('[INST] ' if loop.first else '{again}' if loop.previtem.role == 'assistant' else '')"
  return _turns(_by_role(f"{begins} + {system}", f"{begins} + text + ' [/INST]'", "text + '</s>'"), "",
                "{{ bos_token }}", trim)

_SYS = r"'<<SYS>>\n' + text + '\n<</SYS>>\n\n'"
_COMMAND_R = "'<|START_OF_TURN_TOKEN|><|%s_TOKEN|>' + text + '<|END_OF_TURN_TOKEN|>'"
# Gemma has no system turn: the system's words go before the user's
_GEMMA = ("{{ bos_token }}{% set before = namespace(text='') %}{% for m in messages %}" + _CONTENT +
          "{% if m.role == 'system' %}{% set before.text = before.text + text | trim %}{% else %}"
          "{{ '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' }}"
          "{% if before.text and m.role != 'assistant' %}{{ before.text + '\n\n' }}"
          "{% set before.text = '' %}{% endif %}"
          "{{ text | trim + '<end_of_turn>\n' }}{% endif %}{% endfor %}"
          "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}")

BUILTIN: dict[str, str] = {
  "chatml": CHATML, "llama3": LLAMA3, "gemma": _GEMMA,
  "llama2": _llama2(r"text + '\n'"), "llama2-sys": _llama2(_SYS), "llama2-sys-bos": _llama2(_SYS, "<s>[INST] "),
  "llama2-sys-strip": _llama2(_SYS, trim=True),
  "mistral-v1": _mistral(" ", " "), "mistral-v3": _mistral("", " ", trim=True), "mistral-v3-tekken": _mistral("", ""),
  "mistral-v7": _mistral7(" "), "mistral-v7-tekken": _mistral7(""),
  "phi3": _turns("'<|' + m.role + '|>\n' + text + '<|end|>\n'", "<|assistant|>\n"),
  "phi4": _turns("'<|im_start|>' + m.role + '<|im_sep|>' + text + '<|im_end|>'", "<|im_start|>assistant<|im_sep|>"),
  "falcon3": _turns("'<|' + m.role + '|>\n' + text + '\n'", "<|assistant|>\n"),
  "zephyr": _turns("'<|' + m.role + '|>\n' + text + '<|endoftext|>\n'", "<|assistant|>\n"),
  "granite": _turns("'<|start_of_role|>' + m.role + '<|end_of_role|>' + text + '<|end_of_text|>\n'",
                    "<|start_of_role|>assistant<|end_of_role|>"),
  "vicuna": _turns(_by_role(r"text + '\n\n'", r"'USER: ' + text + '\n'", r"'ASSISTANT: ' + text + '</s>\n'"),
                   "ASSISTANT:", "{{ bos_token }}"),
  "deepseek2": _turns(_by_role(r"text + '\n\n'", r"'User: ' + text + '\n\n'",
                               "'Assistant: ' + text + '<｜end▁of▁sentence｜>'"), "Assistant:", "{{ bos_token }}"),
  "deepseek3": _turns(_by_role(r"text + '\n\n'", "'<｜User｜>' + text",
                               "'<｜Assistant｜>' + text + '<｜end▁of▁sentence｜>'"), "<｜Assistant｜>",
                      "{{ bos_token }}"),
  "command-r": _turns(_by_role(*(_COMMAND_R % role for role in ("SYSTEM", "USER", "CHATBOT"))),
                      "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>", "{{ bos_token }}", trim=True),
  "llama4": _turns("'<|header_start|>' + m.role + '<|header_end|>\n\n' + text + '<|eot|>'",
                   "<|header_start|>assistant<|header_end|>\n\n", "{{ bos_token }}", trim=True),
  "chatglm4": _turns("'<|' + m.role + '|>\n' + text", "<|assistant|>\n", "[gMASK]<sop>"),
}
# templates that llama.cpp knows by name and BUILTIN lacks
OTHERS = frozenset((
  "bailing", "bailing-think", "bailing2", "chatglm3", "deepseek", "deepseek-ocr", "exaone-moe", "exaone3", "exaone4",
  "gigachat", "glmedge", "gpt-oss", "granite-4.0", "granite-4.1", "grok-2", "hunyuan-dense", "hunyuan-moe",
  "hunyuan-vl", "kimi-k2", "megrez", "minicpm", "monarch", "openchat", "orion", "pangu-embedded", "rwkv-world",
  "seed_oss", "smolvlm", "solar-open", "vicuna-orca", "yandex"))
