"""300 texts that tokenizers tend to get wrong, the same on every machine."""
import random
from collections.abc import Sequence
from typing import TypeVar

T, COUNT = TypeVar("T"), 300
SPACES = (" ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", "\r", "\v", "\f", "\u00a0", "\u2003", "\u200b",
          "\u2028", "\u3000", "\ufeff", " \n", "\n ", "\t \t", "\u0085")
EMOJI = ("😀", "👍🏽", "👩‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪🇫🇷", "❤️", "1️⃣", "🧑🏿‍🚀", "\u200d", "\ufe0f", "🫠")
SCRIPTS = ("漢字仮名交じり文", "你好，世界。", "안녕하세요", "مرحبا بالعالم", "שָׁלוֹם", "नमस्ते दुनिया",
           "สวัสดีชาวโลก", "Привет, мир!", "Γειά σου", "မင်္ဂလာပါ", "ﷺ", "ǅ", "ß", "İi", "ﬁn", "e\u0301\u0323",
           "Z͑ͫ̓a̴̰͝lgo", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢", "𐍈𒀀", "½²③Ⅻ", "①٣४")
CODE = ("def f(x):\n    return x ** 2\n", "if (a&&b||!c) { x += 1; } // no\n", "<div class=\"a\">&amp;</div>",
        "SELECT * FROM t;--", "\t\tfor(;;)\n\t\t\t*p++ = 0x7fFF;", "$\\frac{a}{b}$",
        "{\"a\": [1, 2.5e-3, null]}", "https://a.b/c?d=e&f=%20#g", "#!/bin/sh\nset -e\n", "a->b::c<d>(e...)",
        "==== !!!! ???? ----", "x\\n\\t\\u0041", "`'\"´’“”«»")
NUMBERS = ("0", "12", "123", "1234", "1234567890", "3.14159", "1,000,000", "-1e-10", "0x1F",
           "99999999999999999999", "٣٤٥", "1/2")
WORDS = ("don't", "I'LL", "we've", "they'd", "O'Neill's", "naïve", "HELLO", "camelCaseWord", "snake_case_word",
         "ＦＵＬＬ", "the", " the", "antidisestablishmentarianism", "aaaaaaa", "zzz", ".", "...", "!?", "'s",
         "'S", "’s", "'", "a", " A")
SPECIAL = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>",
           "<pad>", "<unk>", "</s>", "<s>", "[INST]", "<|im_start", "|im_end|>", "<0x0A>",
           "<|im_start|>user\n", "<end_of_turn>\n<start_of_turn>model\n", "<unused0>", "<mask>",
           "[multimodal]", "<h1>", "▁", "Ġ", "<repo_name>", "<empty_output>")
ODD = ("\0", "a\0b", "\x01\x02\x1b[0m", "\x7f\x80\x9f", "\ud800", "\udfff", "a\ud83d", "\udc00\ud83d",
       "\uffff\ufdd1", "\U0010ffff", "\u202e", "\u00ad", "\ue000", "\ufffd", "\b\b")
RUNS = (("a", 999), (" ", 300), ("\n", 100), ("\t", 65), ("0", 257), ("漢", 200), ("😀", 50), ("=", 128), ("ab ", 99),
        ("\0", 33), ("\u0301", 70), ("<|im_end|>", 20), ("'s", 40))
KINDS: tuple[Sequence[str], ...] = (SPACES, EMOJI, SCRIPTS, CODE, NUMBERS, WORDS, SPECIAL, ODD)

def hostile_texts() -> list[str]:
  """Each piece alone, the empty text, long runs, then mixtures of two to twelve pieces of all kinds."""
  pieces = [piece for kind in KINDS for piece in kind]
  runs = [piece * n for piece, n in RUNS]
  found, draw = ["", *pieces, *runs], random.Random(33)
  def pick(among: Sequence[T]) -> T: return among[int(draw.random() * len(among))]
  while len(found) < COUNT:
    found.append("".join(pick(pick(KINDS)) for _ in range(2 + int(draw.random() * 11))))
  return found[:COUNT]

def as_unicode(text: str) -> str:
  """The text with each lone surrogate replaced by U+FFFD, so that UTF-8 can encode it."""
  return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
