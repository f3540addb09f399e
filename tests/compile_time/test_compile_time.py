"""patches/compile_time: the passes do not change the kernels."""
import functools

from tests.support import child
from tests.support.extended import sample
import pytest
from tests.compile_time.layers import graphs
from tinygrad.codegen import to_program
from tinygrad.engine import realize
from tinygrad.helpers import Context
from tinygrad_llm.patches import is_on

PATCHES = ("interning", "graph_rewrite", "implicit_inputs", "type_inference", "tuple_order", "scalarize", "trace_cache",
           "gc_pause")
pytestmark = pytest.mark.skipif(not all(map(is_on, PATCHES)), reason="they are off")

def sources() -> list[str]:
  with Context(CCACHE=0):
    return [to_program(*realize._get_call_to_compile(call)).src[2].arg for lazy in graphs()
            for call in lazy.linear_with_vars()[0].src]

@functools.cache
def usual() -> list[str]: return child.call(sources).value

@pytest.mark.parametrize("names", sample([ALL := " ".join(PATCHES), *PATCHES], [ALL]))
def test_kernels_are_the_same_without_passes(names):
  off = {f"NO_{name.upper()}": "1" for name in names.split()}
  assert len(usual()) > 6 and child.call(sources, **off).value == usual()
