"""
Fetches the reference data of the tokenizer and template tests: real models' vocabularies with test vectors, and chat
templates. They come from the llama.cpp sources in the llama-cpp-python source package (77 MB; nothing is compiled).

python tests/tools/fetch_vectors.py     # into $XDG_CACHE_HOME/tinygrad_llm/vectors, or ~/.cache/tinygrad_llm/vectors
"""
import hashlib, os, pathlib, subprocess, sys, tarfile, tempfile

PACKAGE, VERSION = "llama_cpp_python", "0.3.36"
SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
VOCABULARIES = ("command-r", "deepseek-coder", "deepseek-llm", "falcon", "gemma-4", "gpt-2", "llama-bpe", "llama-spm",
                "mpt", "phi-3", "qwen2", "qwen35", "refact", "starcoder")
VECTORS = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "tinygrad_llm" / "vectors"

def download(folder: str) -> pathlib.Path:
  subprocess.run([sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", PACKAGE, "--dest", folder,
                  f"{PACKAGE}=={VERSION}"], check=True)
  archive = pathlib.Path(folder) / f"{PACKAGE}-{VERSION}.tar.gz"
  with archive.open("rb") as file: found = hashlib.file_digest(file, "sha256").hexdigest()
  if found != SHA256: sys.exit(f"{archive.name}: sha256 is {found}, not {SHA256}")
  return archive

def wanted(name: str) -> str | None:
  """The file name under which a member of the archive is kept; None if it is not."""
  folder, _, file = name.rpartition("/")
  if not folder.startswith(f"{PACKAGE}-{VERSION}/vendor/llama.cpp/models"): return None
  if folder.endswith("/templates") and file.endswith(".jinja"): return file
  return file if file in [f"ggml-vocab-{v}.gguf{end}" for v in VOCABULARIES for end in ("", ".inp", ".out")] else None

def main() -> None:
  VECTORS.mkdir(parents=True, exist_ok=True)
  with tempfile.TemporaryDirectory() as folder, tarfile.open(download(folder)) as archive:
    count = 0
    for member in archive:
      if (name := wanted(member.name)) and (source := archive.extractfile(member)):
        part = VECTORS / f"{name}.part"
        part.write_bytes(source.read())
        part.replace(VECTORS / name)
        count += 1
  print(f"{VECTORS}: {count} files")

if __name__ == "__main__": main()
