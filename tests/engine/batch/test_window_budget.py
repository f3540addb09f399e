"""Memory of models whose layers with a window have a pool of their own."""
from dataclasses import replace

import pytest
from tests.engine.batch.test_budget import MIB, TOLD, header, told
from tests.support.model_cases import MODELS
from tests.support.synthetic import SHAPES
from tinygrad_llm.engine.batch.pool_size import pool_blocks, window_size
from tinygrad_llm.engine.prefixes.windows import WindowSize

# a window of 1,024 takes 1.5 of a block's 2 MiB: a sequence holds 18 of its blocks, and a piece 4 more
WINDOW = replace(TOLD, window_block=3 * MIB // 2, window=1024)
CONTEXT = 8192

def test_sizes_by_hand(tmp_path):
  """Gemma 3 4B: 5 of 34 layers see all. The layers of gpt-oss take turns."""
  found = told(*header(tmp_path, **SHAPES["gemma-3-4b"] | {"vocab": 5000}))
  layer = 2 * 4 * 64 * 256 * 2
  assert (found.block, found.window_block, found.window) == (34 * layer, 29 * layer, 1024)
  assert found.parts(32768, 2)["KV cache"] == layer * (2 * 512 * 5 + (2 * 18 + 4) * 29)
  assert found.parts(2048)["KV cache"] == 32 * 34 * layer, "a window takes more than half of the context"

def test_windows_of_caches(tmp_path):
  """Layers that read another one's keys and values count for it; models without windows have none."""
  _, config = header(tmp_path, **MODELS["gemma4-e"])
  assert config.cache_windows == {0: 24, 1: 24, 2: 0}
  _, config = header(tmp_path, **MODELS["llama"])
  assert set(config.cache_windows.values()) == {0} and window_size(config, 1000, 4096, 256) is None

def test_window_size(tmp_path):
  _, config = header(tmp_path, **MODELS["gemma3"])
  assert window_size(config, 129, 1024, 64) == WindowSize(1 + 16 * 3 + 1, 24, 64)
  assert window_size(config, 129, 256, 64) is None

@pytest.mark.parametrize("free", [100, 1000, 3000, 9000])
def test_pool_takes_its_share(free):
  """The pools together take a third of what is free; one context has room whatever that is."""
  blocks = pool_blocks(WINDOW, CONTEXT, free * MIB)
  room = (free - 800) * MIB // 3
  assert blocks == 128 or WINDOW.pool(blocks, CONTEXT) <= room
  assert WINDOW.pool(2 * blocks, CONTEXT) > room or blocks == 8 * 128
  assert blocks >= pool_blocks(TOLD, CONTEXT, free * MIB)

def test_pool_without_full_layers():
  """Blocks without bytes: there are as many as for eight contexts, and the windows count alone."""
  alone = replace(WINDOW, window_block=WINDOW.block)
  assert pool_blocks(alone, CONTEXT, 3000 * MIB) == 8 * 128 and alone.pool(8 * 128, CONTEXT) == 292 * alone.block

@pytest.mark.parametrize("sequences", [1, 2, 8])
def test_largest_context_fits(sequences):
  for free in (801, 900, 1000, 2000, 5000, 20000):
    largest = WINDOW.largest(free * MIB, sequences)
    assert not largest or WINDOW.needed(largest, sequences) <= free * MIB
    assert largest == WINDOW.context or WINDOW.needed(largest + 64, sequences) > free * MIB
    assert largest >= TOLD.largest(free * MIB, sequences)
