"""Split models: parts that are found through links with other names, and names with other suffixes."""
import numpy as np
import pytest
from gguf import GGUFWriter
from tinygrad_llm.errors import InputError
from tinygrad_llm.files.gguf import open_gguf

def write(folder, count=3, suffix=".gguf", stem="m"):
  """Writes a split model, one tensor per part, and returns the paths of its parts."""
  folder.mkdir(parents=True, exist_ok=True)
  paths = [folder / f"{stem}-{i + 1:05}-of-{count:05}{suffix}" for i in range(count)]
  for i, path in enumerate(paths):
    w = GGUFWriter(str(path), "llama")
    for key, value in (("no", i), ("count", count), ("tensors.count", count)): w.add_uint16(f"split.{key}", value)
    w.add_tensor(f"t{i}", np.full(32, i, np.float32))
    w.write_header_to_file(), w.write_kv_data_to_file(), w.write_tensors_to_file(), w.close()
  return paths

def names(path) -> list[str]: return sorted(open_gguf(path).tensors)

@pytest.mark.parametrize("suffix", [".gguf", ".GGUF", ".Gguf", ""])
@pytest.mark.parametrize("part", range(3))
def test_any_part(tmp_path, suffix, part): assert names(write(tmp_path, suffix=suffix)[part]) == ["t0", "t1", "t2"]

def test_links_with_other_names(tmp_path):
  parts = write(tmp_path / "held")
  (tmp_path / "model").symlink_to(parts[1])
  (tmp_path / "again.gguf").symlink_to("model")  # relative, a link of a link
  (tmp_path / "lone-00001-of-00003.gguf").symlink_to(parts[0])  # named as a part, with no other parts beside it
  for name in ("model", "again.gguf", "lone-00001-of-00003.gguf"): assert names(tmp_path / name) == ["t0", "t1", "t2"]

def test_links_named_as_parts(tmp_path):
  """As in the hub's cache, only the links have the names of parts."""
  parts, shown = write(tmp_path / "parts"), tmp_path / "snapshot"
  shown.mkdir()
  for i, part in enumerate(parts):
    part.rename(blob := tmp_path / f"blob{i}")
    (shown / part.name).symlink_to(blob)
  (tmp_path / "mine.gguf").symlink_to(shown / parts[2].name)
  for path in (shown / parts[0].name, tmp_path / "mine.gguf"): assert names(path) == ["t0", "t1", "t2"]
  with pytest.raises(InputError, match="name them NAME-00001-of-00003.gguf"): open_gguf(tmp_path / "blob0")

def test_missing_part(tmp_path):
  parts = write(tmp_path)
  parts[1].unlink()
  with pytest.raises(InputError, match="m-00002-of-00003.gguf: path: no such file"): open_gguf(parts[0])

def test_cyclic_links(tmp_path):
  (tmp_path / "a.gguf").symlink_to(tmp_path / "b.gguf")
  (tmp_path / "b.gguf").symlink_to(tmp_path / "a.gguf")
  with pytest.raises(InputError): open_gguf(tmp_path / "a.gguf")
