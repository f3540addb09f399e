"""run's flags, and a file's suggested settings, which the flags override."""
import json
import os
import re
import sys

import pytest
from tests.support.scripted_gguf import CHATML, CONTROL, build
from tinygrad.helpers import NUM_CPU_THREADS
import tinygrad_llm
from tinygrad_llm import InputError, __version__, bench, perplexity, run, tune
from tinygrad_llm.engine.suggested import suggested

MARKS = [("<|im_start|>", CONTROL), ("<|im_end|>", CONTROL)]
TEMPLATE = CHATML + "{{ '<think>\n\n</think>\n\n' if enable_thinking is defined and not enable_thinking }}{{ style }}"

def sampling(w, _):
  for key, value in (("temp", 0.6), ("top_p", 0.95)): w.add_float32(f"general.sampling.{key}", value)
  w.add_int32("general.sampling.top_k", 20)

@pytest.fixture(scope="module")
def path(tmp_path_factory):
  made = tmp_path_factory.mktemp("scripted") / "m.gguf"
  build(made, ["one ", "two ", "three ", ("id", "<|im_end|>")], MARKS, TEMPLATE, kv=sampling)
  return made

def ask(monkeypatch, capfd, path, *args) -> tuple[int, str, str]:
  monkeypatch.setattr(sys, "argv", ["run", "-m", str(path), *map(str, args)])
  monkeypatch.setattr(sys, "stdin", open(os.devnull))  # noqa: SIM115
  code = 0
  try: run.main()
  except SystemExit as e: code = int(e.code or 0)
  return code, *capfd.readouterr()

def answer(*args) -> dict:
  code, out, err = ask(*args, "--json")
  assert code == 0, err
  return json.loads(out)

def test_short_names(monkeypatch, capfd, path):
  code, out, err = ask(monkeypatch, capfd, path, "-p", "hi", "-n", 2, "-c", 64, "--temperature", 0)
  assert (code, out) == (0, "one two \n") and err.endswith("]\n") and "[finish: length] [2 tokens" in err
  code, out, err = ask(monkeypatch, capfd, path, "-p", "hi", "-n", -1, "--temperature", 0)
  assert (code, out) == (0, "one two three \n") and "finish" not in err

def test_memory(monkeypatch, capfd, path):
  """The table of a file, which is not loaded; a wrong context ends in one line."""
  monkeypatch.setattr(tinygrad_llm, "load", None)
  code, out, err = ask(monkeypatch, capfd, path, "--memory", "-c", 64)
  assert (code, err) == (0, "")
  lines = out.splitlines()
  assert lines[0].split() == ["part", "MiB"] and "KV cache, 64 positions" in out
  assert re.fullmatch(r"fits: 1 x \d+, 2 x \d+, 4 x \d+, 8 x \d+ tokens", lines[-1])
  assert ask(monkeypatch, capfd, path, "--memory", "-c", 0)[::2] == (
    2, "error: --max-context 0: give a number of tokens from 1\n")

def test_list_marks_what_fits(monkeypatch, capfd, path):
  """Each cached model has the largest context that fits; a file that is damaged has a question mark."""
  monkeypatch.setattr(run, "listing", lambda: [("a", "o/a", "a.gguf", 5), ("b", "o/b", "b.gguf", 0),
                                               ("c", "o/c", "c.gguf", 5)])
  monkeypatch.setattr(run, "cached_path", lambda name: path if name == "a" else os.devnull)
  code, out, _ = ask(monkeypatch, capfd, path, "--list")
  rows = [line.split() for line in out.splitlines()]
  assert code == 0 and rows[0] == ["name", "repository", "file", "cached", "fits"]
  assert rows[1][-1] == "tokens" and int(rows[1][-2]) > 0 and rows[2][-2:] == ["-", "-"] and rows[3][-1] == "?"

def test_version(monkeypatch, capfd, path):
  assert ask(monkeypatch, capfd, path, "--version")[:2] == (0, f"tinygrad_llm {__version__}\n")

def test_finish_reason_and_seed(monkeypatch, capfd, path):
  greedy = answer(monkeypatch, capfd, path, "-p", "hi", "--temperature", 0)
  assert (greedy["finish"], greedy["seed"], greedy["text"]) == ("stop", 0, "one two three ")
  assert answer(monkeypatch, capfd, path, "-p", "hi", "--stop", "two", "-s", 7)["finish"] == "stop_string"
  assert answer(monkeypatch, capfd, path, "-p", "hi", "-n", 1, "--seed", 7)["seed"] == 7
  drawn = {answer(monkeypatch, capfd, path, "-p", "hi", *seed)["seed"] for seed in ((), ("--seed", -1), ())}
  assert len(drawn) == 3  # the file's temperature is above 0
  _, _, err = ask(monkeypatch, capfd, path, "-p", "hi")
  assert "[seed: " in err
  assert "seed" not in ask(monkeypatch, capfd, path, "-p", "hi", "--seed", 3)[2]

def test_sampling_settings_suggested_by_file(path, capfd):
  from tinygrad_llm.files.gguf import open_gguf
  assert suggested(open_gguf(path).kv) == {"temperature": 0.6, "top_k": 20, "top_p": 0.95}
  odd = {"temp": "hot", "top_p": 2.0, "top_k": -1, "min_p": True, "penalty_repeat": float("nan"), "mirostat": 1}
  assert suggested({f"general.sampling.{k}": v for k, v in odd.items()}) == {"top_k": 0}
  assert capfd.readouterr().err.count("warning: general.sampling.") == 5
  none = {"mirostat": 0, "xtc_probability": 0.0, "penalty_last_n": 7, "xtc_threshold": 0.1}
  assert suggested({f"general.sampling.{k}": v for k, v in none.items()}) == {}
  assert capfd.readouterr().err == ""
  assert suggested({"general.sampling.penalty_repeat": 1.5, "general.sampling.penalty_last_n": -1}) == {
    "repeat_penalty": 1.5}
  assert "penalty_last_n: -1 is not known here" in capfd.readouterr().err

def test_python_api_ignores_suggested_settings(path, capfd):
  llm = tinygrad_llm.load(str(path))
  assert [llm.tokenizer.token_bytes(i) for i in llm.generate(llm.prompt([{"role": "user", "content": "hi"}]), 3)] == [
    b"one ", b"two ", b"three "]
  assert capfd.readouterr().err == ""
  assert llm.suggested["temperature"] == 0.6

def test_flags_override_suggested_settings(monkeypatch, capfd, path):
  given = {}
  generate = run.Settings.sampling
  monkeypatch.setattr(run.Settings, "sampling", lambda self: given.update(generate(self)) or generate(self))
  answer(monkeypatch, capfd, path, "-p", "hi", "--top-k", 0, "--temperature", "0.1", "-s", 1)
  assert given == {"temperature": 0.1, "top_k": 0, "top_p": 0.95, "min_p": 0.0, "repeat_penalty": 1.0, "seed": 1,
                   "presence_penalty": 0.0, "frequency_penalty": 0.0}

def prompts(monkeypatch) -> list[str]:
  from tinygrad_llm.engine.llm import LLM
  found, prompt = [], LLM.prompt
  def spy(self, *args):
    ids = prompt(self, *args)
    found.append("".join(self.tokenizer.control_text(i) or self.tokenizer.token_bytes(i).decode() for i in ids))
    return ids
  monkeypatch.setattr(LLM, "prompt", spy)
  return found

def test_thinking_and_template_flags(monkeypatch, capfd, path):
  found = prompts(monkeypatch)
  for args in (["--think", "off"], ["--hide-thinking"], ["--template", "style=brief"], ["--template", "style=[1, 2]"]):
    answer(monkeypatch, capfd, path, "-p", "hi", "-n", 1, *args)
  assert found[0].endswith("</think>\n\n") and "think" not in found[1]
  assert found[2].endswith("brief") and found[3].endswith("[1, 2]")
  _, _, err = ask(monkeypatch, capfd, path, "-p", "hi", "-n", 1, "--template", "mood=x")
  assert "warning: --template mood: the model's template does not read it" in err
  for wrong in ("mood", "=x", "a b=1"): assert ask(monkeypatch, capfd, path, "-p", "hi", "--template", wrong)[0] == 2

def test_tokens_option_bypasses_template(monkeypatch, capfd, path):
  code, _, err = ask(monkeypatch, capfd, path, "--tokens", "1,2", "-n", 1, "--system", "x", "--think", "off",
                     "--template", "style=y")
  assert code == 0 and all(f"warning: {name}: --tokens" in err for name in ("--system", "--think", "--template"))

def test_benchmark_counts_all_tokens(monkeypatch, capfd, tmp_path):
  """A benchmark counts all tokens, also those that begin another turn."""
  build(tmp_path / "m.gguf", ["one ", ("id", "<|im_start|>"), "user"], MARKS, CHATML)
  said = answer(monkeypatch, capfd, tmp_path / "m.gguf", "-p", "hi", "--benchmark", 9)
  assert (said["tokens"], said["finish"]) == (9, "length")
  said = answer(monkeypatch, capfd, tmp_path / "m.gguf", "-p", "hi")
  assert (said["tokens"], said["finish"], said["text"]) == (2, "stop_string", "one ")

def test_stop_strings_after_thinking(monkeypatch, capfd, tmp_path):
  """Stop strings do not match inside the thinking, also for --tokens that end with its opening mark."""
  build(tmp_path / "m.gguf", ["<think>", "a: b", "</think>", "42 ", "a: c", ("id", "<|im_end|>")], MARKS, CHATML)
  path = tmp_path / "m.gguf"
  for flags, text in (((), "<think>\na: b\n</think>\n\n42 \n"), (("--think", "hide"), "42 \n")):
    code, out, err = ask(monkeypatch, capfd, path, "-p", "hi", "--stop", "a:", *flags)
    assert (code, out) == (0, text) and "[finish: stop_string]" in err
  said = answer(monkeypatch, capfd, path, "-p", "hi", "--stop", "a:")
  assert (said["text"], said["finish"]) == ("<think>a: b</think>42 ", "stop_string")
  said = answer(monkeypatch, capfd, path, "--tokens", said["token_ids"][0], "--stop", "a:")
  assert said["text"] == "a: b</think>42 "

def test_line_ends(monkeypatch, capfd, path):
  found = prompts(monkeypatch)
  answer(monkeypatch, capfd, path, "-p", "a\r\nb", "--system", "c\r\nd", "-n", 1)
  assert "a\nb" in found[0] and "c\nd" in found[0] and "\r" not in found[0]

@pytest.mark.parametrize("args", [("-n", "1e3"), ("-n", "0"), ("-n", "-2"), ("-t", "0"), ("-t", "two"), ("-s", "-2"),
                                  ("--think", "maybe"), ("--temperature", "-1"), ("--top-k", "1.5")])
def test_rejects_wrong_numbers(monkeypatch, capfd, path, args):
  code, out, err = ask(monkeypatch, capfd, path, "-p", "hi", *args)
  assert (code, out, err.count("\n")) == (2, "", 1)

def test_threads_option(monkeypatch, capfd, path):
  before = NUM_CPU_THREADS.value
  monkeypatch.setenv("NUM_CPU_THREADS", "2")
  def load(*args, **kwargs): raise InputError("not loaded")
  monkeypatch.setattr(tinygrad_llm, "load", load)
  try:
    assert ask(monkeypatch, capfd, path, "-p", "hi", "-t", 1)[0] == 2
    assert (NUM_CPU_THREADS.value, os.environ["NUM_CPU_THREADS"]) == (1, "1")
  finally: NUM_CPU_THREADS.value = before
  for command in (bench, tune, perplexity):
    monkeypatch.setattr(sys, "argv", ["x", "-f", "none", "-t", "0"] if command is perplexity else ["x", "-t", "0"])
    with pytest.raises(SystemExit) as e: command.main()
    assert e.value.code == 2 and "--threads 0" in capfd.readouterr().err
