"""Reads the configuration of recurrent mixers. `size` and `fail` read a key of the file and refuse it: see reader."""
from __future__ import annotations
from collections.abc import Callable
from typing import NoReturn
from tinygrad_llm.nn.layers import DeltaConfig

def delta(size: Callable[..., int], fail: Callable[[str, str], NoReturn], grouped: bool) -> DeltaConfig:
  k_heads, v_heads, head_dim = size("ssm.group_count"), size("ssm.time_step_rank"), size("ssm.state_size")
  if v_heads % k_heads: fail("ssm.time_step_rank", f"{k_heads} key heads do not divide {v_heads} value heads")
  if (inner := size("ssm.inner_size", v_heads * head_dim)) != v_heads * head_dim:
    fail("ssm.inner_size", f"{inner} is not {v_heads} heads of ssm.state_size {head_dim}")
  return DeltaConfig(k_heads, v_heads, head_dim, size("ssm.conv_kernel", low=2, high=64), grouped)
