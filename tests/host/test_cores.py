"""The number of cores that a process may use, from Linux's cgroup files in containers."""
import os
import sys

import pytest
from tests.support.child import run
from tinygrad_llm.patches.host.cores import available, quotas, threads

V2 = "25 1 0:22 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n"
V1 = "33 32 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n" \
     "34 32 0:30 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"

def write(root, files: dict[str, str]):
  for name, text in files.items():
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)
  return root

CASES = {
  "version 2": ({"proc/self/cgroup": "0::/a/b\n", "proc/self/mountinfo": V2,
                 "sys/fs/cgroup/a/b/cpu.max": "150000 100000\n"}, [1.5]),
  "those above": ({"proc/self/cgroup": "0::/a/b\n", "proc/self/mountinfo": V2,
                   "sys/fs/cgroup/a/b/cpu.max": "max 100000\n",
                   "sys/fs/cgroup/a/cpu.max": "200000 100000\n"}, [2]),
  "a namespace": ({"proc/self/cgroup": "0::/\n", "proc/self/mountinfo": V2,
                   "sys/fs/cgroup/cpu.max": "50000 100000"}, [0.5]),
  "outside of it": ({"proc/self/cgroup": "0::/../..\n", "proc/self/mountinfo": V2,
                     "sys/fs/cgroup/cpu.max": "300000 100000"}, [3]),
  "a mounted part": ({"proc/self/cgroup": "0::/docker/x/y\n",
                      "proc/self/mountinfo": V2.replace(" / /sys", " /docker/x /sys"),
                      "sys/fs/cgroup/y/cpu.max": "100000 100000", "sys/fs/cgroup/cpu.max": "400000 100000"}, [1, 4]),
  "version 1": ({"proc/self/cgroup": "5:memory:/m\n4:cpu,cpuacct:/docker/x\n", "proc/self/mountinfo": V1,
                 "sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.cfs_quota_us": "250000\n",
                 "sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.cfs_period_us": "100000\n",
                 "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
                 "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n"}, [2.5]),
  "both": ({"proc/self/cgroup": "4:cpu:/x\n0::/y\n",
            "proc/self/mountinfo": V2.replace("cgroup rw", "cgroup/unified rw") + V1,
            "sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_quota_us": "100000",
            "sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_period_us": "50000"}, [2]),
  "a name with a space": ({"proc/self/cgroup": "0::/\n", "proc/self/mountinfo": V2.replace("fs/cgroup", "fs/c\\040g"),
                           "sys/fs/c g/cpu.max": "100000 100000"}, [1]),
  "no mountinfo": ({"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/cpu.max": "100000 100000"}, [1]),
  "rubbish": ({"proc/self/cgroup": "x\n::\n0::/a\n", "proc/self/mountinfo": "-\n1 2\n" + V2,
               "sys/fs/cgroup/a/cpu.max": "many of them", "sys/fs/cgroup/cpu.max": "100000 0"}, []),
  "a folder for a file": ({"proc/self/cgroup": "0::/a\n", "proc/self/mountinfo": V2,
                           "sys/fs/cgroup/a/cpu.max/x": "", "sys/fs/cgroup/cpu.max": "200000 100000"}, [2]),
  "too many words": ({"proc/self/cgroup": "0::/\n", "proc/self/mountinfo": V2,
                      "sys/fs/cgroup/cpu.max": "1 2 3"}, []),
  "no limit in version 1": ({"proc/self/cgroup": "2:cpu:/\n", "proc/self/mountinfo": V1,
                             "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1",
                             "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000"}, []),
  "a quota without a period": ({"proc/self/cgroup": "2:cpu:/\n", "proc/self/mountinfo": V1,
                                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "50000"}, []),
  "none": ({}, [])}

@pytest.mark.parametrize("name", CASES)
def test_cgroup_quotas(tmp_path, name):
  files, want = CASES[name]
  assert list(quotas(write(tmp_path, files))) == want

def test_undecodable_system_files(tmp_path):
  write(tmp_path, CASES["a namespace"][0])
  for name in ("sys/fs/cgroup/cpu.max", "proc/self/cgroup", "proc/self/mountinfo"):
    (tmp_path / name).write_bytes(b"\xff\0\xfe 1\n")
    assert list(quotas(tmp_path)) == []

def test_available_cores(tmp_path, monkeypatch):
  monkeypatch.delenv("PYTHON_CPU_COUNT", raising=False)
  monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
  assert available(tmp_path) == 8
  for quota, cores in (("50000 100000", 1), ("150000 100000", 2), ("1600000 100000", 8), ("max 100000", 8)):
    assert available(write(tmp_path, CASES["a namespace"][0] | {"sys/fs/cgroup/cpu.max": quota})) == cores
  monkeypatch.setenv("PYTHON_CPU_COUNT", "3")
  assert available(tmp_path) == 3

def test_user_core_count_wins(monkeypatch):
  """The user's core count overrides quota and affinity; invalid values are ignored."""
  monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0}, raising=False)
  for value, wanted in (("7", 7), ("default", 1), ("0", 1), ("-3", 1), ("", 1)):
    monkeypatch.setenv("PYTHON_CPU_COUNT", value)
    assert available() == wanted
  monkeypatch.setitem(sys._xoptions, "cpu_count", "5")
  assert available() == threads() == 5
  monkeypatch.setenv("NUM_CPU_THREADS", "9")
  assert (available(), threads()) == (5, 9)

@pytest.mark.parametrize("env,wanted", [
  ({"PYTHON_CPU_COUNT": "1"}, "1 1"), ({"PYTHON_CPU_COUNT": "1", "NUM_CPU_THREADS": "3"}, "3 3"),
  ({"PYTHON_CPU_COUNT": "1", "PARALLEL": "2"}, "1 2")], ids=str)
def test_defaults_of_threads_and_compile_workers(env, wanted):
  """Kernel threads and compile workers default to the number of cores; the user may set more."""
  gone = {"NUM_CPU_THREADS": "", "PARALLEL": "", "PYTEST_XDIST_WORKER_COUNT": ""} | env
  code = (f"import os\nos.environ.update({gone})\n[os.environ.pop(k) for k, v in {gone}.items() if not v]\n"
          "import tinygrad_llm\nfrom tinygrad.helpers import NUM_CPU_THREADS, PARALLEL\n"
          "print(NUM_CPU_THREADS.value, PARALLEL.value)")
  assert run(code, DEV="CPU").stdout.strip() == wanted
