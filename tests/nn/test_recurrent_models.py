"""The test models of recurrent families (no code of the app): their states matter, so a wrong state shows."""
import numpy as np
import pytest
from tests.support.extended import sample
from tests.support.model_cases import IDS, MODELS, VOCAB
from tests.support.reference import MIXERS, Reference
from tests.support.synthetic_families import FAMILIES

RECURRENT = ("shortconv", "delta", "kda", "mamba2")
CASES = [name for name, model in MODELS.items()
         if {*RECURRENT} & {*"+".join(FAMILIES[model["arch"]].mixers).split("+")}]
WRONG = 5e-3  # of the logits' standard deviation: above every error limit of test_logits.py


def errors(path, change) -> float:
  """The largest change of the last logits, in standard deviations, by `change(kind, mixer)` of the recurrent mixers."""
  reference = Reference(path)
  right = reference.logits(IDS[:100])
  with pytest.MonkeyPatch.context() as patch:
    for kind in RECURRENT: patch.setitem(MIXERS, kind, change(MIXERS[kind]))
    return np.abs(reference.logits(IDS[:100])[-1] - right[-1]).max() / right.std()


@pytest.mark.parametrize("name", sample(CASES, ("lfm2", "qwen35", "kimi-linear", "granitehybrid")))
def test_states_matter(name, model_file):
  """A state that is lost two, ten or fifty tokens before the last one changes the last logits."""
  path = model_file(vocab=VOCAB, **MODELS[name])
  for back in (2, 10, 50):
    def cut(mixer, back=back):
      return lambda ref, x, i: np.concatenate([mixer(ref, x[:-back], i), mixer(ref, x[-back:], i)])
    assert errors(path, cut) > WRONG
