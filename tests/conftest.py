"""Shared fixtures, and the CPU time of each test. The device is the CPU unless DEV says otherwise."""
from tests.support import session  # noqa: F401  # before tinygrad: it sets the environment
import collections
import pathlib
from collections.abc import Callable, Iterator

import pytest
from tests.support.cpu_time import cpu_seconds
from tests.support.synthetic import write_model
from tinygrad_llm import errors
from tinygrad_llm.device.compiler import use_c_compiler
from tinygrad_llm.patches.cache import schedules

use_c_compiler()  # before tinygrad looks for a compiler and caches the answer
schedules.FILES = pathlib.Path("none")  # tests do not use the schedules that the package ships for some machines


@pytest.fixture(autouse=True)
def warnings_anew() -> None:
  """A warning is printed once a process; this resets it, so that it is printed once a test."""
  errors._print.cache_clear()


@pytest.fixture(scope="session")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., pathlib.Path]:
  """model_file(**arguments of synthetic.write_model) -> the model's file, written once a session."""
  folder = tmp_path_factory.mktemp("models")
  made: dict[str, pathlib.Path] = {}
  def make(**arguments) -> pathlib.Path:
    key = repr(sorted(arguments.items()))
    if key not in made: made[key] = write_model(folder / f"{len(made)}.gguf", **arguments)
    return made[key]
  return make

# *** CPU time of the suite
# these files take longest (make test ARGS=--cpu-times) and run first, so that no core idles at the end
LONGEST = ("engine/batch/test_ahead_models", "gpu/test_card", "tiles/test_pack_operands",
           "commands/test_readme_commands", "commands/test_kernel_suite", "engine/batch/test_stream",
           "engine/batch/test_forks", "gpu/test_gpu_schedules", "patches/test_codegen", "commands/test_tune",
           "engine/batch/test_row_steps", "quants/test_table", "nn/test_logits", "attention/test_attention",
           "engine/test_prompt_cache", "gpu/test_mma_tiles", "web/test_life", "web/test_chat", "patches/test_patches",
           "commands/test_bench", "explain/test_rewrites", "engine/batch/test_faults", "engine/test_precompile",
           "attention/test_attention_rows", "nn/test_recurrent", "weights/test_loader",
           "engine/batch/test_interrupts", "commands/test_profile", "nn/test_scales", "engine/test_default_model",
           "commands/test_kernels", "nn/test_linear_attention", "engine/test_device_sampling",
           "schedule/test_register_tiles", "search/test_space", "engine/test_turns", "commands/test_run",
           "nn/test_trained", "host/test_threads")

TIMEOUT = pytest.mark.timeout(3600)  # of tests that take minutes

def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
  order = {f"tests/{name}.py": i for i, name in enumerate(LONGEST)}
  items.sort(key=lambda item: order.get(item.nodeid.split("::")[0], len(order)))
  for item in items:
    if item.get_closest_marker("kernel_suite") or item.get_closest_marker("extended"): item.add_marker(TIMEOUT)

def pytest_addoption(parser: pytest.Parser) -> None:
  parser.addoption("--cpu-times", action="store_true", help="print the processor seconds of files and tests")

@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
  item.stash[START] = cpu_seconds()
  return (yield)

@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
  report = yield
  if report.when == "teardown": report.user_properties.append(("seconds", cpu_seconds() - item.stash[START]))
  return report

START = pytest.StashKey[float]()

def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
  skipped = {str(r.longrepr[2]) for r in terminalreporter.stats.get("skipped", ()) if isinstance(r.longrepr, tuple)}
  for reason in sorted(r for r in skipped if "no trained model" in r): terminalreporter.line(reason)
  if not terminalreporter.config.getoption("--cpu-times"): return
  reports = [r for found in terminalreporter.stats.values() for r in found if isinstance(r, pytest.TestReport)]
  tests = collections.Counter({r.nodeid: dict(r.user_properties)["seconds"] for r in reports if r.when == "teardown"})
  files: collections.Counter[str] = collections.Counter()
  for name, seconds in tests.items(): files[name.split("::")[0]] += seconds
  terminalreporter.section(f"{files.total():.0f} processor seconds")
  for name, seconds in (*files.most_common(), *tests.most_common(20)): terminalreporter.line(f"{seconds:7.1f} {name}")
