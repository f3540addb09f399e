"""ir/labels: the tag of a kernel's SINK holds the pass that chose its schedule, and its node counts."""
from tinygrad.uop.ops import UOp
from tinygrad_llm.patches.ir.labels import joined, labelled, renamed

BARE = UOp.sink(UOp.const(1))
A, B = labelled(BARE, "gemv", (3, 40)), labelled(UOp.sink(UOp.const(2)), "stock", (5, 60))

def test_renamed_label():
  assert A.tag == ("gemv", 3, 40) and renamed(A, "tuned").tag == ("tuned", 3, 40) and renamed(BARE, "tuned") is BARE
  assert renamed(register := BARE.replace(tag=7), "tuned") is register

def test_joined_labels_of_chained_stages():
  """Joined labels name each schedule once, in order, and add the nodes; None if a stage has no label."""
  assert joined([A, B]) == ("gemv+stock", 8, 100) and joined([A, A, B]) == ("gemv+stock", 11, 140)
  assert joined([A, BARE]) is None and joined([B]) == B.tag
