"""The C compiler's wrapper: environments that share a cache folder do not touch each other's wrapper."""
import pathlib
import subprocess

from tinygrad_llm.device.compiler import _wrapper


def test_each_zig_has_its_own_wrapper(tmp_path: pathlib.Path, monkeypatch):
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
  made = []
  for name in ("one", "it's two"):
    (tmp_path / name).mkdir()
    (zig := tmp_path / name / "zig").write_text(f'#!/bin/sh\necho "{name}" "$@"\n')
    zig.chmod(0o755)
    made.append(_wrapper(zig))
  said = [subprocess.check_output([wrapper, "-O2"], text=True) for wrapper in made]
  assert said == ["one clang -O2\n", "it's two clang -O2\n"]
  times = [wrapper.stat().st_mtime_ns for wrapper in made]
  assert _wrapper(tmp_path / "one" / "zig") == made[0] and [wrapper.stat().st_mtime_ns for wrapper in made] == times
