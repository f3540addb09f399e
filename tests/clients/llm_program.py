"""The program `llm` against the server at the address argv[1]: an answer, a conversation, a schema, and its chat."""
import importlib.metadata
import json
import os
import pathlib
import subprocess
import sys

MODEL = """- model_id: local
  model_name: any
  api_base: "{}/v1"
  supports_schema: true
"""

folder = pathlib.Path.cwd() / "llm"
folder.mkdir()
(folder / "extra-openai-models.yaml").write_text(MODEL.format(sys.argv[1]))

def llm(*args: str, given: str = "") -> str:
  env = os.environ | {"LLM_USER_PATH": str(folder)}
  done = subprocess.run([sys.executable, "-m", "llm", *args], env=env, input=given, text=True, capture_output=True)
  assert done.returncode == 0 and not done.stderr.strip(), done.stderr
  return done.stdout.strip()

short = ("-m", "local", "-o", "max_tokens", "20")
assert llm("Tell me about a fox.", *short)
assert llm("Tell me about a fox.", *short, "--no-stream")
assert llm("-c", "And then?", "-o", "max_tokens", "20")
found = json.loads(llm("Invent a dog.", "-m", "local", "--schema", "name, age int", "-o", "max_tokens", "200"))
assert isinstance(found["name"], str) and isinstance(found["age"], int) and len(found) == 2, found
chat = llm("chat", *short, given="Tell me about a fox.\nTell me about a boat.\nquit\n")
assert [len(line.split()) > 2 for line in chat.splitlines() if line.startswith("> ")] == [True, True], chat
said = json.loads(llm("logs", "--json", "-n", "0"))
assert len(said) == 6 and all(entry["output_tokens"] for entry in said), said
print(f"llm {importlib.metadata.version('llm')}")
