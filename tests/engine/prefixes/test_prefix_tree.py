"""The prefix tree: longest prefixes against a search of all paths, and the order of eviction."""
import pytest
from hypothesis import given, settings, strategies as st
from tinygrad_llm.engine.prefixes.kv_blocks import Blocks
from tinygrad_llm.engine.prefixes.prefix_tree import PrefixTree, common, key

SIZE = 4

def add(tree: PrefixTree, tokens, exact: int = 1 << 30, root: str = ""):
  """Enters tokens as a sequence would that nobody else reads with; returns the nodes."""
  node, nodes = tree.root(root), []
  for i in range(0, len(tokens) - len(tokens) % SIZE, SIZE):
    child = node.children.get(ids := key(tokens[i:i + SIZE]))
    if child is None:
      block, = tree.blocks.take(1)
      child = tree.insert(node, ids, block, min(max(exact - i, 0), SIZE))
      tree.blocks.drop(block)
    nodes.append(node := child)
  return nodes

@pytest.fixture
def tree(): return PrefixTree(Blocks(1000, SIZE))

@pytest.mark.parametrize("a, b, equal", [([], [1], 0), ([1, 2], [1, 2], 2), ([1, 2, 3], [1, 2], 2), ([256], [0], 0),
                                         ([7, 1 << 16], [7, 1], 1), ([1, 2, 3, 4], [1, 2, 4, 4], 2)])
def test_common(a, b, equal): assert common(key(a), key(b)) == equal

TOKENS = st.lists(st.sampled_from([0, 1, 256, 257]), max_size=14)

@settings(deadline=None, derandomize=True)
@given(st.lists(TOKENS, max_size=12), TOKENS, st.integers(-1, 14))
def test_longest_prefix(held, asked, most):
  tree = PrefixTree(Blocks(1000, SIZE))
  for tokens in held: add(tree, tokens)
  def equal(tokens): return next((i for i, (a, b) in enumerate(zip(tokens, asked)) if a != b), len(tokens))
  lengths = [min(equal(tokens[:len(tokens) - len(tokens) % SIZE]), len(asked), max(most, 0)) for tokens in held]
  path, part, positions = tree.find(tree.root(""), asked, min(most, len(asked)), False)
  assert len(path) * SIZE + positions == max(lengths, default=0)
  assert b"".join(node.key for node in path) == key(asked[:len(path) * SIZE])
  if part is not None: assert part.parent is (path[-1] if path else tree.root(""))
  assert (part is None) == (positions == 0)

def test_exact_prefixes(tree):
  add(tree, range(12), exact=6)
  assert [len(x.path) * SIZE + x.positions for x in (tree.find(tree.root(""), range(20), 20, exact)
                                                     for exact in (False, True))] == [12, 6]

def test_roots_do_not_share(tree):
  add(tree, range(8), root="adapter")
  assert tree.find(tree.root(""), range(8), 8, False) == ([], None, 0)
  assert len(tree.find(tree.root("adapter"), range(8), 8, False).path) == 2

def test_full_block_replaces_its_partly_filled_beginning(tree):
  root = tree.root("")
  for tokens in ([1, 2], [1, 2, 9, 9], [1, 2, 3], [1, 2, 3, 4]):
    block, = tree.blocks.take(1)
    tree.insert(root, key(tokens), block, 0)
    tree.blocks.drop(block)
  assert [*root.children] == [key([1, 2, 9, 9]), key([1, 2, 3, 4])] and tree.blocks.cached == 2

def test_eviction_order(tree):
  """Least recently used paths first, each from its end; a path's start is as recent as what hangs on it."""
  a, b = add(tree, [*range(12)]), add(tree, [*range(4), *range(50, 58)])
  c = add(tree, [*range(90, 98)])
  tree.pin(a[1])      # in use, and its end was not
  tree.pin(b[2])
  tree.unpin(b[2])    # used last
  def evicted():
    alive = [n for n in {*a, *b, *c} if n.parent is not None]
    assert tree.evict()
    node, = (n for n in alive if n.parent is None)
    return node
  assert [evicted() for _ in range(5)] == [a[2], c[1], c[0], b[2], b[1]]
  assert not tree.evict() and tree.blocks.cached == 2  # a sequence's path ends at a[1]
  tree.unpin(a[1])
  assert [evicted(), evicted()] == [a[1], a[0]]
  assert not tree.evict() and tree.blocks.free == tree.blocks.total and tree.evictions == 7

@settings(deadline=None, derandomize=True)
@given(st.lists(st.one_of(st.tuples(st.just("add"), TOKENS), st.tuples(st.just("use"), st.integers(0, 99)),
                          st.tuples(st.just("evict"), st.just(0)))))
def test_eviction_against_a_search(steps):
  tree, nodes = PrefixTree(Blocks(1000, SIZE)), []
  for name, x in steps:
    nodes = [node for node in nodes if node.parent is not None]
    if name == "add": nodes += [node for node in add(tree, x) if node not in nodes]
    elif nodes and name == "use":
      tree.pin(node := nodes[x % len(nodes)])
      tree.unpin(node)
    elif nodes:
      leaves = [node for node in nodes if not node.children]
      oldest = min(leaves, key=lambda node: node.used)
      assert tree.evict() and oldest.parent is None and sum(n.parent is None for n in nodes) == 1
  assert len(tree._heap) <= len(nodes) + len(steps)

def test_heap_does_not_grow_with_use(tree):
  node, = add(tree, range(4))
  for _ in range(1000):
    tree.pin(node)
    tree.unpin(node)
  assert len(tree._heap) == 1

def test_replaced_block(tree):
  node, = add(tree, range(4), exact=0)
  tree.snapshots.budget = 1
  assert tree.snapshots.put(node, "state", 1)
  old, (block,) = node.block, tree.blocks.take(1)
  tree.replace(node, block, SIZE)
  tree.blocks.drop(block)
  assert (node.block, node.exact, tree.blocks.cached) == (block, SIZE, 1) and old != block
  assert node not in tree.snapshots
