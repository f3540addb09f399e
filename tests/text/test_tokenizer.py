"""Tokenizers: a small vocabulary made here, and llama.cpp's test vectors where `make vectors` has fetched them."""
import random
import re

import numpy as np
import pytest
from tests.tools.fetch_vectors import VECTORS, VOCABULARIES
from tokenizers import Regex, pre_tokenizers

from tinygrad_llm.errors import InputError
from tinygrad_llm.files.gguf import open_gguf
from tinygrad_llm.text.literals import Literals
from tinygrad_llm.text.pretokenizers import PRE_MODELS, PRE_TYPES, PreType
from tinygrad_llm.text.tokenizer import BYTE, CONTROL, NORMAL, UNKNOWN, UNUSED, USER_DEFINED, Tokenizer

# each byte's character: itself if it prints, else a character from U+0100 on
PRINTED = [b for b in range(256) if 0x20 < b < 0x7f or 0xa0 < b < 0xad or b > 0xad]
ALPHABET = [chr(b) if b in PRINTED else chr(0x100 + b - sum(x < b for x in PRINTED)) for b in range(256)]
WORDS = ["he", "ll", "llo", "Ġw", "or", "Ġwor", "Ġworld", "Ã©", "12", "123"]
MERGES = ["h e", "l l", "ll o", "Ġ w", "o r", "Ġw or", "Ã ©", "1 2", "12 3"]   # no merge makes Ġworld
SPECIAL = [("<|bos|>", CONTROL), ("<|eos|>", CONTROL), ("<|eot_id|>", CONTROL), ("[TOOL]", USER_DEFINED),
           ("[TOOL]s", USER_DEFINED), ("<unk>", UNKNOWN), ("[PAD]", UNUSED), ("<0xE2>", BYTE), ("odd ü", NORMAL),
           ("<|im_end|>", USER_DEFINED)]
TOKENS = ALPHABET + WORDS + [text for text, _ in SPECIAL]
TYPES = [NORMAL] * (len(ALPHABET) + len(WORDS)) + [kind for _, kind in SPECIAL]
ID = {text: i for i, text in enumerate(TOKENS)}

def metadata(**changes) -> dict:
  kv = {"model": "gpt2", "pre": "qwen2", "tokens": TOKENS, "merges": MERGES, "token_type": np.array(TYPES, np.int32),
        "bos_token_id": ID["<|bos|>"], "eos_token_id": ID["<|eos|>"]} | changes
  return {f"tokenizer.ggml.{key}": value for key, value in kv.items() if value is not None}

def make(**changes) -> Tokenizer: return Tokenizer.from_gguf(metadata(**changes))

def ids(*texts: str) -> list[int]: return [ID[text] for text in texts]

def test_merges():
  t = make()
  assert t.encode("hello world") == ids("he", "llo", "Ġwor", "l", "d")
  assert t.encode("é") == ids("Ã©") and t.encode("") == []
  assert t.encode("1234") == ids("1", "2", "3", "4")   # qwen2 cuts between digits
  assert make(pre="llama-bpe").encode("1234") == ids("123", "4")
  assert t.vocab_size == len(TOKENS)

def test_ignore_merges():
  assert make(pre="llama-bpe").encode("hello world") == ids("he", "llo", "Ġworld")
  # a control token is no word, even if its text is one
  tokens = [*TOKENS, "secret", "se", "sec", "secr", "secre"]
  merges = [*MERGES, "s e", "se c", "sec r", "secr e", "secre t"]
  t = make(pre="llama-bpe", tokens=tokens, token_type=[*TYPES, CONTROL, *[NORMAL] * 4], merges=merges)
  assert len(TOKENS) not in t.encode("secret") and t.encode("secret", parse_special=True) == [len(TOKENS)]

def test_special_tokens():
  t, text = make(), "<|bos|>he[TOOL]s[TOOL]<|eot_id|>"
  parsed = ids("<|bos|>", "he", "[TOOL]s", "[TOOL]", "<|eot_id|>")
  assert t.encode(text, parse_special=True) == parsed
  plain = t.encode(text)
  assert ID["<|bos|>"] not in plain and ID["<|eot_id|>"] not in plain and ID["[TOOL]s"] in plain
  assert t.decode(plain) == text
  assert t.decode(parsed) == "he[TOOL]s[TOOL]"   # control tokens have no text
  assert t.decode(ids("<unk>", "[PAD]", "<0xE2>", "odd ü")) == "\ufffdodd ü"
  assert ID["[PAD]"] not in t.encode("[PAD]", parse_special=True)

def test_quote():
  t = make()
  for text in ("a<|eot_id|>b", "<|bos|><|bos|>", "é<|im_end|>", "[TOOL]", "<|eot", "\ufdd0<|eot_id|>"):
    assert t.encode(t.quote(text) + "_id|>", parse_special=True) == t.encode(text.replace("\ufdd0", "") + "_id|>")
  assert t.quote("plain text") == "plain text"

def test_bos():
  t = make()
  assert t.bos == ID["<|bos|>"] and not t.add_bos and t.encode("he", add_bos=True) == ids("<|bos|>", "he")
  assert make(pre="llama-bpe").add_bos and make(add_bos_token=True).add_bos
  assert not make(pre="llama-bpe", add_bos_token=False).add_bos and not make(pre="llama-bpe", bos_token_id=None).add_bos
  with pytest.raises(InputError, match="bos_token_id"): make(bos_token_id=None).encode("he", add_bos=True)
  with pytest.raises(InputError, match="add_bos_token"): make(bos_token_id=None, add_bos_token=True)

def test_stop_ids():
  ends = {ID["<|eos|>"], ID["<|eot_id|>"], ID["<|im_end|>"]}
  assert make().stop_ids == ends
  assert make(eos_token_id=None, eot_token_id=5, eom_token_id=6).stop_ids == ends - {ID["<|eos|>"]} | {5, 6}

def test_same_text_twice():
  t = make(tokens=[*TOKENS, "he", ""], token_type=[*TYPES, NORMAL, NORMAL], merges=MERGES + MERGES[:1])
  assert t.encode("he") == ids("he") and t.decode([len(TOKENS), len(TOKENS) + 1]) == "he"

def test_merge_part_may_begin_with_space():
  t = make(tokens=[*TOKENS, " ", " x"], token_type=[*TYPES, NORMAL, NORMAL], merges=[*MERGES, "  x"])
  assert t.encode("hello") == ids("he", "llo")

def texts() -> list[str]:
  rng = random.Random(0)
  points = [*range(0x20, 0x250), *range(0x3040, 0x3100), *range(0x1f600, 0x1f650), 9, 10, 13, 0x200d, 0xfeff, 0xfdd0]
  return ["".join(chr(rng.choice(points)) for _ in range(rng.randrange(60))) for _ in range(200)]

@pytest.mark.parametrize("pre", ["qwen2", "llama-bpe"])
def test_round_trip(pre):
  t = make(pre=pre)
  for text in texts():
    stream, found = t.stream(), t.encode(text)
    assert t.decode(found) == text == "".join(map(stream.push, found)) and stream.flush() == ""

def test_stream_holds_back_partial_characters():
  t = make()
  smile = [ID[ALPHABET[b]] for b in "😀".encode()]
  stream = t.stream()
  assert [stream.push(i) for i in smile] == ["", "", "", "😀"]
  assert [stream.push(i) for i in [*smile[:2], ID["h"]]] == ["", "", "\ufffdh"]   # can no longer be a character
  assert stream.push(smile[0]) == "" and stream.flush() == "\ufffd" and stream.flush() == ""
  assert stream.push(ID["h"]) == "h"

def test_stream_equals_decode_for_any_bytes():
  t, rng = make(), random.Random(1)
  for _ in range(200):
    found, stream = [rng.randrange(t.vocab_size) for _ in range(rng.randrange(30))], t.stream()
    assert "".join(map(stream.push, found)) + stream.flush() == t.decode(found)

def test_surrogates_are_replaced():
  t = make()
  assert t.encode("a\ud800b") == t.encode("a\ufffdb") and t.encode("\ud83d\ude00") == t.encode("😀")

@pytest.mark.parametrize("token", [-1, len(TOKENS), 10**30])
def test_ids_out_of_range(token):
  for use in (lambda t: t.decode([token]), lambda t: t.stream().push(token)):
    with pytest.raises(InputError, match="token id"): use(make())

NO_SUCH, WRONG_KIND = "llama.cpp loads no such file either", "of another type than any converter writes: a damaged file"

@pytest.mark.parametrize("field, value, why", [
  ("model", "t5", "other algorithms"), ("model", None, NO_SUCH), ("pre", "gpt-5", NO_SUCH),
  ("pre", ["x\n"], WRONG_KIND), ("tokens", None, NO_SUCH),
  ("tokens", [], "there is nothing to write text with"), ("tokens", "abc", WRONG_KIND),
  ("tokens", np.arange(3), WRONG_KIND), ("tokens", ["\ud800", *TOKENS[1:]], "no text, and no file has it: see gguf.py"),
  ("merges", None, NO_SUCH), ("merges", [1], WRONG_KIND),
  ("token_type", np.array([1, 2], np.int32), NO_SUCH), ("token_type", 3, WRONG_KIND),
  ("token_type", ["a"] * len(TOKENS), WRONG_KIND), ("eot_token_id", 1.5, WRONG_KIND),
  ("eom_token_id", "x" * 1000, WRONG_KIND), ("bos_token_id", True, WRONG_KIND), ("add_bos_token", 1, WRONG_KIND)])
def test_rejects_bad_metadata(field, value, why):
  with pytest.raises(InputError) as e: make(**{field: value})
  assert str(e.value).startswith(f"tokenizer.ggml.{field}: ") and "\n" not in str(e.value)
  assert len(str(e.value).partition("; supported: ")[0]) < 200

@pytest.mark.parametrize("pre", [None, "default"])
def test_missing_pre_tokenizer_uses_default(pre, capfd):
  """A missing or default pre-tokenizer becomes llama.cpp's default, with a warning."""
  assert make(pre=pre).decode(make(pre=pre).encode("it's 12345 $x")) == "it's 12345 $x"
  said = capfd.readouterr().err
  assert said.startswith("warning: tokenizer.ggml.pre: ") and said.count("\n") == 1

@pytest.mark.parametrize("field, value, words", [
  ("merges", [*MERGES, "he", "he "], "2 of 11, such as 'he', are not pairs of texts and are left out"),
  ("merges", [*MERGES, "he ll"], "1 of 10, such as 'he ll', need texts that are no tokens; where these remain, they"),
  ("merges", [*MERGES, "z\n l"], "1 of 10, such as 'z\\n l', need"),
  ("token_type", np.array([*TYPES, 9], np.int32), f"{len(TYPES) + 1} for {len(TYPES)} tokens; those at the end are"),
  ("bos_token_id", -1, f"-1 is not one of the {len(TOKENS)} tokens; there is none"),
  ("eos_token_id", len(TOKENS), "there is none"), ("eot_token_id", 2**32 - 1, "4294967295 is not one of")])
def test_tolerated_faults_give_one_warning(field, value, words, capfd):
  """Faults that llama.cpp tolerates give one line of warning, once."""
  t, sound = make(**{field: value}), make()
  make(**{field: value})
  said = capfd.readouterr().err
  assert said.startswith(f"warning: tokenizer.ggml.{field}: ") and words in said and said.count("\n") == 1
  text = "hello world 123 é\nzl"
  assert t.encode(text) == sound.encode(text) and t.decode(t.encode(text)) == text

def by_rank(word: str, merges: list[str], known: set[str], whole: bool) -> list[str]:
  """
  Reference BPE: merges the leftmost pair of the lowest rank, again and again. Parts that are no token become bytes.
  """
  parts = [word] if whole and word in known else [*word]
  rank = {tuple(merge.split(" ")): i for i, merge in reversed([*enumerate(merges)])}
  while found := [(rank[pair], i) for i, pair in enumerate(zip(parts, parts[1:])) if pair in rank]:
    i = min(found)[1]
    parts[i:i + 2] = ["".join(parts[i:i + 2])]
  return [x for part in parts for x in ([part] if part in known else part)]

@pytest.mark.parametrize("pre", ["qwen2", "llama-bpe"])
def test_merges_through_non_tokens(pre):
  rng, through = random.Random(2), 0
  for _ in range(60):
    texts, merges = ["a", "b", "c", "Ġ"], []
    for _ in range(14):
      left, right = rng.choice(texts), rng.choice(texts)
      if len(left + right) < 7: merges.append(f"{left} {right}"), texts.append(left + right)
    known = {*ALPHABET, *rng.sample(sorted({*texts} - {*ALPHABET}), len({*texts} - {*ALPHABET}) // 2)}
    tokens = [*ALPHABET, *sorted(known - {*ALPHABET})]
    t = make(pre=pre, tokens=tokens, token_type=None, merges=merges, bos_token_id=None, eos_token_id=None)
    for _ in range(20):
      word = "".join(rng.choice("abc") for _ in range(rng.randrange(1, 12)))
      for text, spelt in ((word, word), (" " + word, "Ġ" + word)):
        wanted = by_rank(spelt, merges, known, pre == "llama-bpe")
        assert [tokens[i] for i in t.encode(text)] == wanted and t.decode(t.encode(text)) == text
        through += any(len(x) > 1 and not any(m.replace(" ", "") == x and {*m.split(" ")} <= known for m in merges)
                       for x in wanted)
  assert through > 100   # tokens merged from a text that is no token

def test_byte_fallback_of_utf8_vocabulary():
  tokens = ["h", "e", *(f"<0x{b:02X}>" for b in range(256) if b != 0x65)]
  t = make(model="gemma4", pre=None, tokens=tokens, token_type=[NORMAL] * 2 + [BYTE] * 255,
           merges=["h e", "h é", "hé e"], bos_token_id=None, eos_token_id=None)
  assert t.token_bytes(2) == b"\0" and b"".join(map(t.token_bytes, t.encode("hé"))) == "hé".encode()
  assert t.encode("he") == [tokens.index("<0x68>")]   # as llama.cpp, it leaves out a byte that is no token

def test_vocabulary_without_spaces():
  """Words alone count, in lower case where the file says so; a vocabulary of another kind keeps the case."""
  tokens = ["h", "e", "he", "İ", "i", *(f"<0x{b:02X}>" for b in range(256))]
  def encode(text: str, lowercase: bool | None) -> list[int]:
    return make(**{"model": "whitespace", "pre": "whitespace", "tokens": tokens, "merges": ["h e"], "token_type": None,
                   "normalizer.lowercase": lowercase, "bos_token_id": None, "eos_token_id": None}).encode(text)
  assert encode(" he\n\u3000h", False) == [2, 0] == encode(" HE\n H", True)
  assert encode("H", None) == [tokens.index("<0x48>")] and encode("İ", False) == [3] and encode("İ", True) == [4]
  assert Tokenizer.from_gguf(metadata(model="whitespace", pre=None)).least_tokens(" " * 99) == 0

def test_unsupported_kind_error_lists_supported_kinds():
  for changes in ({"model": "t5"}, {"pre": "gpt-5"}):
    with pytest.raises(InputError, match="llama, gemma4, whitespace, and gpt2 with ") as e: make(**changes)
    assert str(e.value).partition("tokenizer.ggml.pre ")[2].split("pre ")[-1].split(", ") == [*PRE_TYPES]

SPM_WORDS = {"▁": -9, "h": -9, "e": -9, "l": -9, "o": -9, "é": -9, "▁h": -3, "el": -2, "he": -1, "lo": -4, "llo": -5,
             "▁he": -6, "▁▁": -7, "ol": -4}
SPM_SPECIAL = [("[T]", USER_DEFINED), ("<c>", CONTROL), ("c>", NORMAL), ("<", NORMAL), ("▁[T]", USER_DEFINED)]
SPM_TOKENS = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *SPM_WORDS, *(x for x, _ in SPM_SPECIAL)]
SPM_TYPES = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(SPM_WORDS), *(kind for _, kind in SPM_SPECIAL)]
SPM_SCORES = [0.0] * 259 + [float(x) for x in SPM_WORDS.values()] + [0.0] * len(SPM_SPECIAL)

def make_spm(**changes) -> Tokenizer:
  kv = {"model": "llama", "pre": "default", "tokens": SPM_TOKENS, "scores": np.array(SPM_SCORES, np.float32),
        "token_type": np.array(SPM_TYPES, np.int32), "merges": None, "bos_token_id": None, "eos_token_id": None}
  return make(**kv | changes)

def spm_ids(*texts: str) -> list[int]: return [SPM_TOKENS.index(text) for text in texts]

def spm_bytes(text: str) -> list[int]: return [3 + b for b in text.encode()]

def test_spm_merges_the_best_score_first():
  t = make_spm()
  assert t.encode("hello") == spm_ids("▁he", "llo")
  assert make_spm(add_space_prefix=False).encode("hello") == spm_ids("he", "llo")
  # the leftmost of equal pairs is merged
  assert t.encode("lol") == spm_ids("▁", "lo", "l") and t.encode("olol") == spm_ids("▁", "ol", "ol")
  assert t.encode("") == [] and t.encode(" ") == t.encode("▁") == spm_ids("▁▁")
  assert make_spm(scores=None).encode("lel") == spm_ids("▁", "l", "el")
  # a part of a pair need not be a token
  t = make_spm(tokens=[*SPM_TOKENS, "xy"], token_type=[*SPM_TYPES, NORMAL], scores=[*SPM_SCORES, 0])
  assert t.encode("hxyx") == [*spm_ids("▁h"), len(SPM_TOKENS), *spm_bytes("x")]

def test_spm_falls_back_to_bytes():
  t = make_spm()
  assert t.encode("hé\n😀") == [*spm_ids("▁h", "é"), *spm_bytes("\n😀")]
  assert t.encode("<0x41>") == [*spm_ids("▁", "<"), *spm_bytes("0x41>")]   # no text becomes a byte token
  tokens = [x if x != "<0x0A>" else "gone" for x in SPM_TOKENS]
  assert make_spm(tokens=tokens).encode("h\nx") == [*spm_ids("▁h"), 0, *spm_bytes("x")]
  assert make_spm(tokens=tokens, unknown_token_id=7).encode("\n") == [*spm_ids("▁"), 7]

def test_spm_special_tokens():
  t = make_spm()
  assert t.encode("h[T]h", parse_special=True) == spm_ids("▁h", "[T]", "▁h")   # a space follows a special token, too
  assert t.encode("<c><s>he </s>", parse_special=True) == spm_ids("<c>", "<s>", "▁he", "▁", "</s>")
  assert t.encode("<c>") == spm_ids("▁", "<", "c>") and t.encode("<unk>", parse_special=True) == [0]
  assert t.decode(t.encode("</s>")) == "</s>" and t.encode(t.quote("<c>") + "h", parse_special=True) == t.encode("<c>h")
  assert t.bos == 1 and t.add_bos and t.stop_ids == {2} and not make_spm(add_bos_token=False).add_bos
  assert make_spm(bos_token_id=2, eos_token_id=1).bos == 2 and make_spm(eos_token_id=1).stop_ids == {1, 2}

@pytest.mark.parametrize("name, strips", [("Phi3", True), ("phi-3-mini", True), ("Phi 3", False), (None, False)])
def test_white_space_after_special_tokens(name, strips):
  """As in llama.cpp, special tokens of files named so take white space along, but <s> and others do not."""
  kv = {"model": "llama", "tokens": SPM_TOKENS, "scores": SPM_SCORES, "token_type": SPM_TYPES}
  t = Tokenizer.from_gguf({f"tokenizer.ggml.{k}": v for k, v in kv.items()} | {"general.name": name})
  def encode(text: str) -> list[int]: return t.encode(text, parse_special=True)
  assert encode("<c> \t\n\r\v\fhe") == encode("<c>he" if strips else "<c> \t\n\r\v\fhe") != encode("<c>")
  assert (encode("<c> \n") == encode("<c>")) == (encode("</s>\n<c>") == encode("</s><c>")) == strips
  assert encode("<s> he") != encode("<s>he") and encode("<c>\u3000he") != encode("<c>he")
  assert encode("he <c>") != encode("he<c>") and (t.least_tokens(" " * 999) == 0) == strips

def test_spm_decode_strips_leading_space_and_stream_keeps_it():
  t, text = make_spm(), " he héo\n😀 <c>  lol"
  found = t.encode(text)
  assert t.decode(found) == t.decode([1, *found]) == text == make_spm(add_space_prefix=False).decode(found)[1:]
  stream = t.stream()
  assert "".join(map(stream.push, found)) + stream.flush() == " " + text   # a stream keeps the leading space
  assert [stream.push(i) for i in spm_bytes("é")] == ["", "é"] and stream.push(1) == stream.push(0) == ""
  assert t.token_bytes(SPM_TOKENS.index("▁[T]")) == "▁[T]".encode()   # user-defined text stays as it is
  for text in texts(): assert t.decode(t.encode(text)) == text

def test_spm_is_fast_on_long_words():
  t = make_spm()   # a merge loop that is not O(n log n) takes minutes
  assert len(t.encode("lo" * 50_000)) == 50_001 and len(t.encode("é" * 100_000)) == 100_001

@pytest.mark.parametrize("field, value, why", [
  ("scores", np.array([0.0, 1.0]), NO_SUCH), ("scores", "x" * len(SPM_TOKENS), WRONG_KIND),
  ("scores", [float("nan")] * len(SPM_TOKENS), "llama.cpp loads it, and orders merges by what has no order"),
  ("tokens", None, NO_SUCH), ("token_type", [1], NO_SUCH)])
def test_spm_rejects_bad_metadata(field, value, why):
  with pytest.raises(InputError, match=rf"^tokenizer\.ggml\.{field}: "): make_spm(**{field: value})

@pytest.mark.parametrize("field, value, words", [
  ("scores", np.array([*SPM_SCORES, 1], np.float32), "those at the end are left out"),
  ("unknown_token_id", len(SPM_TOKENS), "0 is taken"), ("bos_token_id", -1, "1 is taken"),
  ("eos_token_id", 2**32 - 1, "2 is taken")])
def test_spm_tolerated_faults_give_one_warning(field, value, words, capfd):
  t, sound, text = make_spm(**{field: value}), make_spm(), "hello 😀"
  said = capfd.readouterr().err
  assert said.startswith(f"warning: tokenizer.ggml.{field}: ") and words in said and said.count("\n") == 1
  assert t.encode(text) == sound.encode(text) and (t.bos, t.stop_ids) == (sound.bos, sound.stop_ids) == (1, {2})

def words(kind: PreType, text: str) -> list[str]:
  """The words into which a pre-tokenizer splits a text."""
  splits = [(r"\s+", "removed")] if kind.drops_spaces else [(split, "isolated") for split in kind.splits]
  pairs = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(split), how) for split, how in splits])
  return [word for word, _ in pairs.pre_tokenize_str(text)]

@pytest.mark.parametrize("pre, text, cut", [
  ("gpt-2", "I'll pay 1234  $x\n\n", "I|'ll| pay| 1234| | $|x|\n\n"),
  ("starcoder", "x 123", "x| |1|2|3"),
  ("smollm", "DON'T it's", "DON|'|T| it|'s"),
  ("falcon", "a 12345, b", "a| |123|45|,| b"),
  ("llama-bpe", "it'S 12345 ok.\n\n x", "it|'S| |123|45| ok|.\n\n| x"),
  ("glm4", "1234", "123|4"),
  ("qwen2", "12 a\u0301b", "1|2| a|\u0301b"),
  ("seed-coder", "it's ok.\n\n x 12", "it|'s| ok|.|\n\n| x| |1|2"),
  ("qwen35", "12 a\u0301b", "1|2| a\u0301b"),
  ("deepseek-llm", "a\n12\u3000\u3002  ", "a|\n|12|\u3000|\u3002|  "),
  ("deepseek-llm", "\u3002\u3000\u3042b", "\u3002|\u3000|\u3042|b"),
  ("deepseek-coder", "f(x, 12)", "f|(|x|,| |1|2|)"),
  ("deepseek-v3", ".md 1234 \u6f22a $%\n", ".md| |123|4| |\u6f22|a| $%\n"),
  ("tekken", "helloWorld it's 12 //\n/", "hello|World| it|'s| |1|2| //\n/"),
  ("gpt-4o", "helloWorld it's 1234", "hello|World| it's| |123|4"),
  ("kimi-k2", "aB\u6f22\u5b57c's 1234", "aB|\u6f22\u5b57|c's| |123|4"),
  ("youtu", "aB \uac00\u6f22\u3001 12/", "aB| |\uac00|\u6f22|\u3001| |1|2|/"),
  ("default", "it's 12345 $x, (a+b)  c\nd", "it|'|s| |123|45| |$|x|,| |(|a|+|b|)| | c|\n|d"),
  ("jais-2", "it'S 1234" + " " * 7 + "x", "it|'S| |123|4|    |  | x"),
  ("minicpm5", "it'S 1234 ok.\n\n x", "it|'S| |123|4| ok|.\n\n| x"),
  ("bailingmoe2", "it'S 12 a.\n\n x", "it|'S| |1|2| a|.\n\n| x"),
  ("ufakzeka", "Ankara'da 12", "Ankara|'da| |1|2"),
  ("laguna", "a. \n\n b", "a|.| |\n\n| b"),
  ("exaone-moe", "the cat sat, 12 ok/\n\n\n x", "the cat sat|,| |1|2| ok|/\n|\n\n| x"),
  ("granite-embed-multi-97m", "heLlo\u0301 it's 1234", "he|Llo\u0301| it's| |123|4"),
  ("cohere2moe", "helloWorld  1234567 it's //\n/", "helloWorld| | |1|234|567| it's| //\n/"),
  ("spark2_5", ".md 1234 $%\n\nx", ".md| |1|2|3|4| $%|\n|\n|x"),
  ("afmoe", ".md 1234567  123 \u0e41\u6f22a $%\n", ".md| |1|234|567| | |123| |\u0e41\u6f22|a| $%\n"),
  ("chameleon", "<sentinel:12>a IMGIMGABZ  12,b\n", "<|sentinel|:|1|2|>|a| |IMGIMGABZ|  |1|2|,|b|\n"),
  ("bloom", "Hi there, (you)\u3002  12", "Hi| there|, (|you|)\u3002 | 12"),
  ("viking", "Hi there, 12", "Hi| there|,| |1|2"),
  ("superbpe", "a 1234567\u00b2 12\u00b2123456 b", "a |1|234|567\u00b2| |12\u00b2|123|456| b"),
  ("sarvam-moe", "a b\n\n\nc", "a b|\n\n\n|c"),
  ("whitespace", " a b,\n\u3000c ", "a|b,|c"),
  ("gemma4", "a b\n\n\nc", "a b|\n\n\n|c")])
def test_words(pre, text, cut):
  assert words(PRE_TYPES[pre], text) == cut.split("|")

def test_every_pre_tokenizer_lists_its_models():
  assert PRE_MODELS.keys() == PRE_TYPES.keys() and all(PRE_MODELS.values())

@pytest.mark.parametrize("pre", PRE_TYPES)
def test_long_runs_take_no_quadratic_time(pre):
  for c in (" ", "A", "1", ".", "\n", "\u00b2", "A "): words(PRE_TYPES[pre], "1" + c * 20_000 + "1")

def gemma(**changes) -> Tokenizer:
  return make_spm(tokens=[*SPM_TOKENS, "  ", "<start_of_turn>", "<end_of_turn>"], add_space_prefix=False,
                  token_type=[*SPM_TYPES, USER_DEFINED, CONTROL, CONTROL], scores=[*SPM_SCORES, 0, 0, 0], **changes)

def test_gemma():
  """Gemma: no space in front; runs of spaces are tokens; the end of a turn is a stop token."""
  t, n = gemma(), len(SPM_TOKENS)
  assert t.encode("hello") == spm_ids("he", "llo") and t.decode(t.encode(" he  he")) == " he  he"
  assert t.encode("he  he") == [*spm_ids("he"), n, *spm_ids("he")]
  assert t.encode("<start_of_turn>he<end_of_turn>", parse_special=True) == [n + 1, *spm_ids("he"), n + 2]
  assert n + 2 in t.stop_ids and n + 1 not in t.stop_ids

def test_gemma4():
  """Gemma 4: merges of characters, spaces as U+2581, a byte fallback, and a bos token whatever the file says."""
  tokens = ["<bos>", "<|turn>", "\u2581", "h", "e", "\n", "he", "\u2581he", "\n\n"]
  tokens += [f"<0x{b:02X}>" for b in range(256)]
  kinds = [CONTROL, CONTROL, *[NORMAL] * 7, *[BYTE] * 256]
  t = make(model="gemma4", pre=None, tokens=tokens, token_type=kinds, merges=["h e", "\u2581 he", "\n \n"],
           bos_token_id=0, eos_token_id=None, add_bos_token=False)
  assert t.add_bos and t.encode("he he\n\n\u00e9") == [6, 7, 8, 9 + 0xc3, 9 + 0xa9]
  assert t.decode([6, 7, 8, 9 + 0xc3, 9 + 0xa9]) == "he he\n\n\u00e9"

@pytest.mark.parametrize("kind", [NORMAL, CONTROL, USER_DEFINED])
def test_gemma4_strikes_text_out(kind):
  """In Gemma 4's vocabulary </s> is an HTML tag, whatever the file says: it is shown, and ends nothing."""
  tokens = ["<bos>", "<|tool_response>", "</s>", "</", "s", ">", "<", "/", *(f"<0x{b:02X}>" for b in range(256))]
  kinds = [CONTROL, USER_DEFINED, kind, *[NORMAL] * 5, *[BYTE] * 256]
  t = make(model="gemma4", pre=None, tokens=tokens, token_type=kinds, merges=["< /"], bos_token_id=0, eos_token_id=1)
  assert t.encode("</s>", parse_special=True) == [3, 4, 5] and t.decode([2]) == "</s>" and t.stop_ids == {1}

def test_gpt_oss_message_end_does_not_stop_answer():
  """In gpt-oss an answer has several messages, and each ends with <|end|>."""
  def ends(*texts: str) -> set[str]:
    t = make(tokens=[*TOKENS, *texts], token_type=[*TYPES, *[CONTROL] * len(texts)])
    return {text for i, text in enumerate(texts, len(TOKENS)) if i in t.stop_ids}
  assert ends("<|end|>", "<|user|>") == {"<|end|>"}
  assert ends("<|end|>", "<|return|>", "<|call|>") == {"<|return|>", "<|call|>"}

def test_many_special_tokens():
  many = [f"[PAD{i}]" for i in range(300)] + [" " * n for n in range(2, 40)] + ["<a", "<a>", "<b>"]
  t = make(tokens=[*TOKENS, *many], token_type=[*TYPES, *[USER_DEFINED] * len(many)])
  found = t.encode("[PAD12]" + " " * 45 + "<a><a<b>[PAD1")
  wanted = [many.index(x) + len(TOKENS) for x in ("[PAD12]", " " * 39, " " * 6, "<a>", "<a", "<b>")]
  assert found[:6] == wanted and t.decode(found[6:]) == "[PAD1"

@pytest.mark.parametrize("name", VOCABULARIES)
def test_llama_cpp_test_vectors(name):
  """llama.cpp's test vectors: texts between separators, and a line of ids for each text."""
  path = VECTORS / f"ggml-vocab-{name}.gguf"
  if not path.exists(): pytest.skip(f"no {path}: run `make vectors`")
  t = Tokenizer.from_gguf(open_gguf(path).kv)
  end = "\n__ggml_vocab_test__\n"
  given = path.with_name(path.name + ".inp").read_bytes().decode().removesuffix(end).split(end)
  lines = path.with_name(path.name + ".out").read_text().removesuffix("\n").split("\n")
  wanted = [[int(x) for x in line.split()] for line in lines]
  assert len(given) == len(wanted) > 40
  for text, found in zip(given, wanted, strict=True): assert t.encode(text) == found and t.decode(found) == text

def test_literal_search_matches_regex():
  """The longest text at each position wins, also among texts that are prefixes of each other or overlap."""
  rng = random.Random(3)
  for _ in range(200):
    texts = {"".join(rng.choices("ab<", k=rng.randrange(1, 5))) for _ in range(rng.randrange(1, 9))}
    regex = re.compile("(" + "|".join(map(re.escape, sorted(texts, key=len, reverse=True))) + ")")
    text = "".join(rng.choices("ab<-]^\\ ", k=rng.randrange(60)))
    assert Literals(texts).split(text) == regex.split(text), (texts, text)
    assert Literals(texts).sub(lambda m: m[0].upper(), text) == regex.sub(lambda m: m[0].upper(), text)
    match = regex.match(text)
    assert Literals(texts).match(text) == (None if match is None else (match[0],))
  assert Literals([]).split("ab") == ["ab"]

def test_thousands_of_special_tokens():
  """With more special tokens than MOST_COMPILED, they are still found in texts, and not in quoted texts."""
  special = [f"<unused{i}>" for i in range(1000)]
  tokens = ["<unk>", "<s>", "</s>", *special, *"<unsed>0123456789▁"]
  kv = {"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [2, 3, 3, *[3] * 1000, *[1] * (len(tokens) - 1003)]}
  tokenizer = Tokenizer.from_gguf(kv)
  text = "<unused7><unused77><unused777><unused7777>"
  assert tokenizer.encode(text, parse_special=True)[:3] == [10, 80, 780]
  assert not {*tokenizer.encode(tokenizer.quote(text), parse_special=True)} & {*range(1003)} - {0}
