"""Cores that a process may use, by files as Linux has them in containers."""
import os

import pytest
from tinygrad_llm.patches.runtime.cores import available, quotas

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
  "none": ({}, [])}

@pytest.mark.parametrize("name", CASES)
def test_quotas(tmp_path, name):
  files, want = CASES[name]
  assert list(quotas(write(tmp_path, files))) == want

def test_cores(tmp_path, monkeypatch):
  monkeypatch.delenv("PYTHON_CPU_COUNT", raising=False)
  monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
  assert available(tmp_path) == 8
  for quota, cores in (("50000 100000", 1), ("150000 100000", 2), ("1600000 100000", 8), ("max 100000", 8)):
    assert available(write(tmp_path, CASES["a namespace"][0] | {"sys/fs/cgroup/cpu.max": quota})) == cores
  monkeypatch.setenv("PYTHON_CPU_COUNT", "3")
  assert available(tmp_path) == 3
