"""Blocks of KV on disk: what was written is read, bad files count as none with one warning, and the budget holds."""
import os
import pathlib
import random
import resource
import threading
import time

import numpy as np
import pytest
from tests.support import child
from tests.support.extended import some
from tinygrad_llm.engine.prefixes.prefix_files import FIRST, Block, File, ends_first, files_of
from tinygrad_llm.engine.prefixes.prefix_store import HEADER, IDS, PrefixStore
from tinygrad_llm.engine.prefixes.prefix_tree import key

NBYTES, MODEL = 2048, bytes(range(32))

@pytest.fixture
def rng() -> random.Random:
  print("seed", seed := random.randrange(2**32))
  return random.Random(seed)

def store(folder, identity: bytes = MODEL, blocks: float = 1000, nbytes: int = NBYTES) -> PrefixStore:
  return PrefixStore(folder, identity, nbytes, int((HEADER.size + IDS + nbytes) * blocks))

def prompt(rng: random.Random, blocks: int, start: list[bytes] | None = None) -> list[bytes]:
  return [*(start or []), *(key([rng.randrange(2**31) for _ in range(64)]) for _ in range(blocks))]

def kv_of(block: Block, nbytes: int = NBYTES) -> np.ndarray:
  """A block's numbers, which follow from its name. No half is infinite."""
  numbers = np.random.default_rng(int(block.name, 16)).integers(0, 2**16, nbytes // 2, np.uint16)
  return np.where(numbers & 0x7c00 == 0x7c00, 0, numbers).astype(np.uint16).view(np.uint8)

def write(kept: PrefixStore, keys: list[bytes]) -> list[Block]:
  blocks = [*kept.chain(keys)]
  for before, block in zip([None, *blocks], blocks): kept.write(block, before, kv_of(block))
  return blocks

def known(kept: PrefixStore, blocks: list[Block]) -> int:
  """How many leading blocks are read, each of which must be right."""
  for i, block in enumerate(blocks):
    if (kv := kept.read(block)) is None: return i
    assert np.array_equal(kv, kv_of(block))
  return len(blocks)

def test_another_process_reads_what_was_written(tmp_path, rng):
  start = prompt(rng, 3)
  prompts = [prompt(rng, rng.randint(0, 4), start) for _ in range(5)]
  written = [write(store(tmp_path / "new" / "folder"), keys) for keys in prompts]
  again = store(tmp_path / "new" / "folder")
  assert [known(again, blocks) for blocks in written] == [len(keys) for keys in prompts]
  assert (tmp_path / "new" / "folder").stat().st_mode & 0o77 == 0
  assert len({*(b.name for blocks in written for b in blocks)}) == len([*(tmp_path / "new" / "folder").iterdir()])

def test_a_name_depends_on_all_tokens_before_and_on_the_model(tmp_path, rng):
  keys = prompt(rng, 3)
  others = [prompt(rng, 1) + keys[1:], [keys[1], keys[0], keys[2]], keys[2:]]
  names = [[*store(tmp_path, MODEL).chain(x)][-1].name for x in (keys, *others)]
  names.append([*store(tmp_path, bytes(32)).chain(keys)][-1].name)
  assert len({*names}) == len(names)

DAMAGES = {
  "cut": lambda data, rng: data[:rng.randrange(len(data))],
  "empty": lambda data, rng: b"",
  "longer": lambda data, rng: data + b"\0",
  "flipped": lambda data, rng: bytes([*data[:(at := rng.randrange(len(data)))], data[at] ^ 1 << rng.randrange(8),
                                      *data[at + 1:]]),
  "zeros": lambda data, rng: bytes(len(data)),
  "text": lambda data, rng: b"nothing of this kind\n",
  "version": lambda data, rng: b"prefix02" + data[8:],
}

@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_counts_as_none(tmp_path, capfd, damage, rng):
  blocks = write(store(tmp_path), prompt(rng, 4))
  bad = rng.sample(range(4), 2)
  for i in bad:
    path = tmp_path / blocks[i].file
    path.write_bytes(DAMAGES[damage](path.read_bytes(), rng))
  again = store(tmp_path)
  assert known(again, blocks) == min(bad) and not again.has(blocks[min(bad)])
  assert [known(again, [block]) for block in blocks] == [i not in bad for i in range(4)]
  assert capfd.readouterr().err.count("warning: ") == 1
  write(again if rng.random() < 0.5 else store(tmp_path), [block.ids for block in blocks])
  assert known(store(tmp_path), blocks) == 4, "bad files are written anew"
  capfd.readouterr()
  assert known(store(tmp_path), blocks) == 4 and not capfd.readouterr().err

def test_files_under_other_names_count_as_none(tmp_path, capfd, rng):
  """A block of another model, or of other tokens, renamed."""
  keys = prompt(rng, 2)
  mine, foreign = write(store(tmp_path), keys), write(store(tmp_path, bytes(32)), keys)
  os.replace(tmp_path / foreign[0].file, tmp_path / mine[0].file)
  os.replace(tmp_path / foreign[1].file, tmp_path / mine[1].file)
  assert known(again := store(tmp_path), mine) == known(again, mine[1:]) == 0
  mine = write(store(tmp_path), prompt(rng, 2))
  os.replace(tmp_path / mine[1].file, tmp_path / mine[0].file)
  assert known(store(tmp_path), mine) == 0

def test_a_folder_in_a_files_place(tmp_path, capfd, rng):
  blocks = [*store(tmp_path).chain(prompt(rng, 1))]
  (tmp_path / blocks[0].file).mkdir()
  kept = store(tmp_path)
  assert known(kept, blocks) == 0
  write(kept, [blocks[0].ids])
  assert kept.gave_up and capfd.readouterr().err.count("warning: ") == 2

@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_what_is_no_file_in_a_files_place(tmp_path, capfd, rng, kind):
  """It is not waited for, and written anew."""
  blocks = write(store(tmp_path), prompt(rng, 3))
  (path := tmp_path / blocks[1].file).unlink()
  os.mkfifo(path) if kind == "pipe" else path.symlink_to("/dev/zero")
  found, again = [], store(tmp_path)
  thread = threading.Thread(target=lambda: found.append(known(again, blocks)), daemon=True)
  thread.start()
  thread.join(20)
  assert found == [1] and capfd.readouterr().err.count("warning: ") == 1
  write(again, [block.ids for block in blocks])
  assert known(store(tmp_path), blocks) == 3 and path.is_file() and not path.is_symlink()

def test_full_disk(tmp_path, capfd, rng):
  """One warning, no file left behind; what is there is read on."""
  blocks = write(kept := store(tmp_path), prompt(rng, 2))
  before = resource.getrlimit(resource.RLIMIT_FSIZE)
  most = rng.randrange(999, kept.size)  # stderr is a file, too
  resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
  try: write(kept, prompt(rng, 3))
  finally: resource.setrlimit(resource.RLIMIT_FSIZE, before)
  write(kept, prompt(rng, 2))
  assert {path.name for path in tmp_path.iterdir()} == {block.file for block in blocks}
  assert known(kept, blocks) == 2 and kept.gave_up
  err = capfd.readouterr().err
  assert err.count("warning: ") == 1 and "File too large" in err

@pytest.mark.parametrize("place", ["file", "file/below", "\N{BLACK HEART SUIT}" * 300])
def test_folder_that_cannot_be_made(tmp_path, capfd, place, rng):
  (tmp_path / "file").write_text("")
  kept = store(tmp_path / place)
  assert known(kept, write(kept, prompt(rng, 2))) == 0
  assert capfd.readouterr().err.count("warning: ") == 1

def test_folder_that_goes_away(tmp_path, capfd, rng):
  kept = store(tmp_path / "gone")
  (tmp_path / "gone").rmdir()
  assert known(kept, write(kept, prompt(rng, 2))) == 0
  assert capfd.readouterr().err.count("warning: ") == 1

def test_numbers_that_are_not_finite_are_not_kept(tmp_path, rng):
  kept = store(tmp_path)
  for wrong in (0x7c00, 0xfc00, 0x7e01):
    block, = kept.chain(prompt(rng, 1))
    kv = kv_of(block).copy()
    kv.view(np.uint16)[rng.randrange(NBYTES // 2)] = wrong
    kept.write(block, None, kv)
    assert not kept.has(block)

# *** the budget

def total(folder: pathlib.Path) -> int: return sum(path.stat().st_size for path in folder.iterdir())

@pytest.mark.parametrize("blocks", [1.2, 3, 10, 40.5])
def test_budget_holds_after_each_write(tmp_path, blocks, rng):
  """The folder has blocks of two models."""
  stores = [store(tmp_path, identity, blocks) for identity in (MODEL, bytes(32))]
  for _ in range(60):
    kept = rng.choice(stores)
    chain, before = [*kept.chain(prompt(rng, rng.randint(1, 6)))], None
    for block in chain:
      kept.write(block, before, kv_of(block))
      before = block
      assert total(tmp_path) <= kept.budget
    assert known(kept, chain) >= 1

def test_a_path_in_use_stays(tmp_path, rng):
  """A prompt that is read again and again stays whole, while others come and go."""
  kept = store(tmp_path, blocks=24)
  mine = write(kept, prompt(rng, 5))
  for _ in range(30):
    write(kept, prompt(rng, rng.randint(1, 5)))
    time.sleep(0.002)
    assert known(kept, mine) == 5
    kept.touch(mine[-1])
  assert len([*tmp_path.iterdir()]) > 12

def test_a_path_goes_from_its_end(tmp_path, rng):
  """A beginning that others continue is newer than they are; a prompt that exceeds the budget keeps its beginning."""
  kept = store(tmp_path, blocks=10)
  blocks = write(kept, prompt(rng, 30))
  assert known(kept, blocks) >= 6
  found = {path.name for path in tmp_path.iterdir()}
  assert found == {block.file for block in blocks[:len(found)]}

def test_order_of_files(tmp_path):
  def file(name, parent, used): return File(name, parent, used, 1, "")
  a, b, c = file("a", FIRST, 1), file("b", "a", 50), file("c", "a", 7)
  d, e, lost = file("d", FIRST, 30), file("e", "d", 20), file("x", "gone", 99)
  want = [lost, c, e, d, b, a]
  for seed in range(20): assert ends_first(random.Random(seed).sample(want, 6)) == want

def test_files_left_behind(tmp_path, rng):
  """A file that a killed process was writing counts, and goes after an hour; other files are nobody's business."""
  kept = store(tmp_path, blocks=8)
  names = [f"{block.file}.123.4.new" for block in kept.chain(prompt(rng, 2))]
  for name in names: (tmp_path / name).write_bytes(bytes(100))
  (tmp_path / "notes.txt").write_text("mine" * 10000)
  assert sorted(file.nbytes for file in files_of(tmp_path)) == [100, 100]
  os.utime(tmp_path / names[0], (time.time() - 7200,) * 2)
  write(kept, prompt(rng, 2))
  assert not (tmp_path / names[0]).exists() and (tmp_path / names[1]).exists() and (tmp_path / "notes.txt").exists()

def test_a_block_larger_than_the_budget(tmp_path, capfd, rng):
  kept = store(tmp_path / "none", blocks=1)
  assert known(kept, write(kept, prompt(rng, 2))) == 0 and not (tmp_path / "none").exists()
  assert capfd.readouterr().err.count("warning: ") == 1

# *** several processes

def worker(folder: str, seed: int, rounds: int, blocks: float) -> list[int]:
  """Writes and reads prompts that other workers write, too; [blocks found, most bytes seen]."""
  kept, rng, found, most = store(pathlib.Path(folder), blocks=blocks), random.Random(seed), 0, 0
  for _ in range(rounds):
    shared = random.Random(rng.randrange(6))
    blocks_ = [*kept.chain(prompt(shared, 4))]
    found += known(kept, blocks_)
    write(kept, [block.ids for block in blocks_])
    most = max(most, total_now(pathlib.Path(folder)))
  return [found, most]

def total_now(folder: pathlib.Path) -> int: return sum(file.nbytes for file in files_of(folder))

@pytest.mark.parametrize("blocks", some((14, 1000), 0))
def test_processes_share_a_folder(tmp_path, blocks):
  """Each finds the others' blocks, all of them right, and the budget holds."""
  results = []
  threads = [threading.Thread(target=lambda i=i: results.append(child.call(worker, str(tmp_path), i, 30, blocks)))
             for i in range(2)]
  for thread in threads: thread.start()
  for thread in threads: thread.join()
  assert len(results) == 2 and all(found > 8 for found, _ in (result.value for result in results))
  assert max(most for _, most in (result.value for result in results)) <= store(tmp_path, blocks=blocks).budget

def test_an_old_path_can_be_continued(tmp_path, rng):
  """In a full folder others go for it, although they are newer."""
  kept = store(tmp_path, blocks=16)
  mine = write(kept, prompt(rng, 3))
  for _ in range(3): write(kept, prompt(rng, 3))
  for block in mine: os.utime(tmp_path / block.file, (1, 1))
  kept = store(tmp_path, blocks=13)
  *_, before, last = kept.chain(prompt(rng, 1, [block.ids for block in mine]))
  kept.write(last, before, kv_of(last))
  assert known(kept, [*mine, last]) == 4 and len([*tmp_path.iterdir()]) < 13
