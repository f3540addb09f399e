"""
aider against the server at the address argv[1]: one change to a file in a git repository, without another network.

The model is too small to change a file well. So its requests must be taken and its answer must arrive.
"""
import importlib.metadata
import os
import pathlib
import re
import subprocess
import sys

repository = pathlib.Path.cwd() / "repository"
repository.mkdir()

def git(*args: str) -> None: subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@example.org", *args],
                                            cwd=repository, check=True, capture_output=True)

git("init", "-q")
(repository / "greeting.py").write_text("def greet():\n  print('hi')\n")
git("add", "greeting.py")
git("commit", "-qm", "greeting: a first one")

options = ["--model", "openai/any", "--yes-always", "--edit-format", "whole", "--map-tokens", "0", "--no-gitignore",
           "--no-check-update", "--no-show-release-notes", "--no-show-model-warnings", "--analytics-disable",
           "--message", "Say hello instead of hi.", "greeting.py"]
env = os.environ | {"HOME": str(pathlib.Path.cwd()), "OPENAI_API_BASE": sys.argv[1] + "/v1", "OPENAI_API_KEY": "none",
                    "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
done = subprocess.run([sys.executable, "-m", "aider", *options], cwd=repository, env=env, stdin=subprocess.DEVNULL,
                      text=True, capture_output=True, timeout=500)
found = re.search(r"Tokens: ([\d.k]+) sent, (\d[\d.k]*) received", done.stdout)
assert done.returncode == 0 and found and found[2] != "0", done.stdout + done.stderr
print(f"aider-chat {importlib.metadata.version('aider-chat')}: {found[0]}")
