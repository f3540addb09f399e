"""The command line: answers, JSON, the chat, and bad input that ends in one line and exit code 2."""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import pytest
from synthetic import write_model

ROOT = pathlib.Path(__file__).parent.parent
RUN = [sys.executable, "-m", "tinygrad_llm.run"]

@pytest.fixture(scope="module")
def model(model_file): return str(model_file(types="Q8_0", vocab=384, context=96))

def run(*args: str, env: dict[str, str] | None = None, **options) -> subprocess.CompletedProcess:
  return subprocess.run([*RUN, *args], capture_output=True, text=True, cwd=ROOT, timeout=120,
                        env={**os.environ, "DEV": "CPU", **(env or {})}, **options)

def refused(*args: str, env: dict[str, str] | None = None) -> str:
  done = run(*args, env=env)
  assert done.returncode == 2, done.stderr
  assert done.stdout == ""
  assert done.stderr.startswith("error: ")
  assert done.stderr.count("\n") == 1
  return done.stderr

def test_json(model):
  done = run("--model", model, "--tokens", "1,2,3", "--count", "5", "--benchmark", "8", "--json")
  report = json.loads(done.stdout)
  assert list(report)[:11] == ["model", "device", "prompt_tokens", "tokens", "text", "load_s", "ttft_s",
                               "prefill_tok_s", "decode_tok_s", "kernels_per_token", "bytes_per_token"]
  assert (report["model"], report["device"], report["prompt_tokens"], report["tokens"]) == (model, "CPU", 3, 8)
  assert len(report["token_ids"]) == 8
  assert all(report[key] > 0 for key in ("load_s", "ttft_s", "prefill_tok_s", "decode_tok_s", "bytes_per_token"))

def test_prompt(model):
  done = run("--model", model, "--prompt", "hi", "--count", "4", "--system", "be brief")
  assert done.returncode == 0
  assert "tokens, " in done.stderr
  assert "first token after" in done.stderr

def test_chat(model):
  done = run("--model", model, "--count", "3", input="hello\n\nmore\n")
  assert done.returncode == 0, done.stderr
  assert done.stderr.count("first token after") == 2

def test_ctrl_c_stops_the_answer_not_the_program(tmp_path: pathlib.Path):
  path = write_model(tmp_path / "endless.gguf", vocab=384, context=1 << 15)
  command = [*RUN, "--model", str(path), "--max-context", "30000", "--temperature", "3"]
  with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT,
                        env={**os.environ, "DEV": "CPU"}) as chat:
    assert chat.stdin is not None and chat.stdout is not None and chat.stderr is not None
    chat.stdin.write(b"hi\n")
    chat.stdin.flush()
    assert len(chat.stdout.read(40)) == 40  # it is answering
    chat.send_signal(signal.SIGINT)
    out, err = chat.communicate(b"", timeout=60)
    assert chat.returncode == 0, err.decode()
    assert b"first token after" in err

def test_bad_model(tmp_path: pathlib.Path, model):
  assert "no such file" in refused("--model", str(tmp_path / "none.gguf"), "--prompt", "hi")
  (tmp_path / "text.gguf").write_text("this is not a model, but it is long enough to hold a header")
  assert "text.gguf" in refused("--model", str(tmp_path / "text.gguf"), "--prompt", "hi")
  (tmp_path / "cut.gguf").write_bytes(pathlib.Path(model).read_bytes()[:-4096])
  assert "cut.gguf" in refused("--model", str(tmp_path / "cut.gguf"), "--prompt", "hi")

@pytest.mark.parametrize(("args", "words"), [
  (["--prompt", " "], "--prompt: it is empty"), (["--tokens", "1,x"], "--tokens '1,x'"),
  (["--tokens", "999"], "token 999"), (["--prompt", "hi", "--count", "0"], "--count 0"),
  (["--prompt", "hi", "--max-context", "0"], "max_context: 0"),
  (["--prompt", "hi", "--temperature", "-1"], "temperature"), (["--prompt", "hi", "--nonsense"], "--nonsense"),
  (["--prompt", "a" * 500], "do not fit the context of 96"), (["--json"], "--json")])
def test_bad_arguments(model, args, words): assert words in refused("--model", model, *args)

@pytest.mark.parametrize(("env", "words"), [
  ({"DEV": "FOO"}, "DEV=FOO: no such device"), ({"DEV": "CPU:FOO"}, "DEV=CPU:FOO"),
  ({"BEAM": "x"}, "BEAM=x: it is not a whole number"),
  ({"CUDA": "1"}, "write DEV=CUDA"), ({"CC": "/none/clang"}, "CC=/none/clang: no such program"),
  ({"CC": "false"}, "CC=false: it is not clang")])
def test_bad_environment(model, env, words): assert words in refused("--model", model, "--prompt", "hi", env=env)

def test_no_compiler(model, tmp_path: pathlib.Path):
  """Neither clang on PATH nor the wheel."""
  code = ("import sys; sys.modules['ziglang'] = None; sys.argv = ['run', '--model', sys.argv[1], '--prompt', 'hi'];"
          "from tinygrad_llm.run import main; main()")
  env = {**{k: v for k, v in os.environ.items() if k != "CC"}, "PATH": str(tmp_path), "DEV": "CPU"}
  done = subprocess.run([sys.executable, "-c", code, model], capture_output=True, text=True, cwd=ROOT, env=env)
  assert done.returncode == 2
  assert "no clang on PATH" in done.stderr
  assert done.stderr.count("\n") == 1

@pytest.mark.skipif(shutil.which("zig") is None and not any(pathlib.Path(p, "ziglang").exists() for p in sys.path),
                    reason="the ziglang wheel is not installed")
def test_zig_wrapper(model, tmp_path: pathlib.Path):
  """An empty PATH and an empty cache: the wrapper is made and used."""
  env = {"PATH": "/usr/bin:/bin" if shutil.which("clang", path="/usr/bin:/bin") is None else str(tmp_path),
         "XDG_CACHE_HOME": str(tmp_path / "cache")}
  done = run("--model", model, "--tokens", "1,2", "--count", "2", "--json", env={**env, "CC": ""})
  assert done.returncode == 0, done.stderr
  assert (tmp_path / "cache" / "tinygrad_llm" / "zig-clang").exists()
