r"""
Pre-tokenizers: how families of models cut text into words before BPE. The table behind `tokenizer.ggml.pre`.

Each row is the regex of a model's published tokenizer.json, in the form in which llama.cpp's `llama-vocab.cpp` runs it.
The two differ where llama.cpp's engine lacks Unicode classes. Then llama.cpp's form counts, so that a file gives the
same ids there and here. DeepSeek's character ranges hold no spaces. TEKKEN and GPT4O know case for ASCII letters only
and do not count \p{M} as letters. KIMI knows neither case nor \p{M}; YOUTU and COHERE2_MOE know no case. AFMOE's and
COHERE2_MOE's digits take the text before them along. EXAONE_MOE joins words at single spaces. Coarser words rarely give
other tokens, because the merges were learned inside the published words.

PRE_TYPES maps each name that a file may carry to its PreType, PRE_MODELS to the models whose files carry it.
"""
from __future__ import annotations
from dataclasses import dataclass

@dataclass(frozen=True)
class PreType:
  """How a family of models cuts text into words before BPE, and its defaults for what a file leaves open."""
  splits: tuple[str, ...]       # Oniguruma regexes, applied in turn; each cuts all pieces that the ones before it left
  ignore_merges: bool = False   # a word that is a token as a whole skips the merges
  add_bos: bool = False         # default where tokenizer.ggml.add_bos_token is missing
  byte_level: bool = True       # tokens are written in GPT-2's byte characters; else in UTF-8 with U+2581 for spaces
  drops_spaces: bool = False    # white space only separates words; no token stands for it

_ENDINGS = "'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])"   # English contractions
_SPACES = r"|\s*[\r\n]+|\s+(?!\S)|\s+"

def _words(digits: str, letter: str = r"\p{L}", other: str = r"[^\s\p{L}\p{N}]",
           line_end: str = r"[\r\n]*", endings: str = _ENDINGS + "|", spaces: str = _SPACES) -> str:
  return rf"{endings}[^\r\n\p{{L}}\p{{N}}]?{letter}+|{digits}| ?{other}+{line_end}{spaces}"

def _cased(digits: str, ending: str, line_end: str = r"[\r\n/]*", upper: str = r"[\p{L}&&[^a-z]]",
           lower: str = r"[\p{L}&&[^A-Z]]") -> str:
  before = r"[^\r\n\p{L}\p{N}]?"
  return (rf"{before}{upper}*{lower}+{ending}|{before}{upper}+{lower}*{ending}|{digits}"
          rf"| ?[^\s\p{{L}}\p{{N}}]+{line_end}{_SPACES}")

def _uncased(digits: str, letter: str, line_end: str) -> str:
  return (rf"[^\r\n\p{{L}}\p{{N}}]?{letter}+(?:{_ENDINGS})?|{digits}"
          rf"| ?[^\s\p{{L}}\p{{N}}]+{line_end}{_SPACES}")

# cased letters in the Unicode version of DeepSeek's first tokenizers
_CASED = (
  "A-Za-z\xb5\xc0-\xd6\xd8-\xf6\xf8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376\u0377\u037b-\u037d"
  "\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5"
  "\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15"
  "\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe"
  "\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113"
  "\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184"
  "\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e"
  "\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
  "\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943")
_EASTERN = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff&&[^\\s]]+"
_KANA_OR_HAN = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_HAN = ("\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002a6df\U0002a700-\U0002ebef\U0002f800-\U0002fa1f")
# digits in threes from the right, the first of them with the text before
_THREES = r"\P{N}*+(?:(?<!\p{N})\p{N}{1,2}(?=(?:\p{N}{3})*+(?!\p{N}))|\p{N}{3})|\P{N}++"
_NO_STOPS = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"   # as in BLOOM's tokenizer, brackets and all
_EASTERN_SCRIPTS = ("[\u4e00-\u9fff\u3400-\u4dbf\u8c48-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf"
                    "\u0e40-\u0e7f\u0e80-\u0eff\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af"
                    "\u1100-\u11ff]+")
_ASCII_AFTER_SIGN = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|"""
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

GPT2 = PreType((_GPT2,))
STARCODER = PreType((r"\p{N}", _GPT2))
FALCON = PreType((r"[\p{P}$+<=>^~|`]+", _GPT2, "[0-9][0-9][0-9]"))
DEFAULT = PreType((r"[\p{P}$+<=>^~|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"))  # llama.cpp's own, of no model
LLAMA3 = PreType((_words(r"\p{N}{1,3}"),), ignore_merges=True, add_bos=True)
JAIS2 = PreType((_words(r"\p{N}{1,3}", spaces=r"|\s*[\r\n]+" + "".join(
  rf"|\s{{{n}}}(?!\S)" for n in ("512", "256", "128", "64", "32", "16", "8", "4", "1,2")) + r"|\s"),))
MINICPM5 = PreType((r"\p{N}{1,3}", _words(r"\p{N}+")), ignore_merges=True)
GLM4 = PreType(LLAMA3.splits, ignore_merges=True)
DBRX = PreType(LLAMA3.splits)
QWEN2 = PreType((_words(r"\p{N}"),))
UFAKZEKA = PreType((_words(r"\p{N}", endings=""),))
LAGUNA = PreType((r"\n+", _words(r"\p{N}")))
EXAONE_MOE = PreType((_words(r"\p{N}", r"(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)", line_end=r"[\r\n/]?"),))
SEED_CODER = PreType((_words(r"\p{N}", line_end=""),))
QWEN35 = PreType((_words(r"\p{N}", r"[\p{L}\p{M}]", r"[^\s\p{L}\p{M}\p{N}]"),))
TEKKEN = PreType((_cased(r"\p{N}", ""),), ignore_merges=True, add_bos=True)
GPT4O = PreType((_cased(r"\p{N}{1,3}", f"(?:{_ENDINGS})?"),))
GRANITE_SMALL = PreType((_cased(r"\p{N}{1,3}", f"(?:{_ENDINGS})?", upper=r"[\p{L}\p{M}&&[^a-z]]",
                                lower=r"[\p{L}\p{M}&&[^A-Z]]"),), ignore_merges=True)
COHERE2_MOE = PreType((_THREES, _uncased(r"\p{N}{1,3}", r"[\p{L}\p{M}]", r"[\r\n/]*")))
KIMI = PreType((rf"[{_HAN}]+|" + _uncased(r"\p{N}{1,3}", rf"[\p{{L}}&&[^{_HAN}]]", r"[\r\n]*"),))
YOUTU = PreType((
  "[\uac00-\ud7a3\u3131-\u318e]+"
  "|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f\ufe30-\ufe4f]+"
  rf"|[\u3105-\u312f]+|{_KANA_OR_HAN}", _uncased(r"\p{N}", r"[\p{L}\p{M}]", r"[\r\n/]*")), ignore_merges=True)
DEEPSEEK_LLM = PreType((
  r"[\r\n]", rf"\s?[{_CASED}]+", "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3001-\u3002]+",
  r"(?<!\s)\s++$", _EASTERN, r"\p{N}+"))   # possessive: a run of spaces is tried once, not from each space
DEEPSEEK_CODER = PreType((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _EASTERN, r"\p{N}"))
_LETTERS_AND_MARKS = r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+"
DEEPSEEK_V3 = PreType((
  r"\p{N}{1,3}", _KANA_OR_HAN, _ASCII_AFTER_SIGN + _LETTERS_AND_MARKS + r"[\r\n]*" + _SPACES))
SPARK = PreType((
  r"\p{N}{1,3}", _KANA_OR_HAN, _ASCII_AFTER_SIGN + _LETTERS_AND_MARKS + r"|[\r\n]|\s+(?!\S)|\s+", r"\p{N}"))
AFMOE = PreType((_THREES, _EASTERN_SCRIPTS, DEEPSEEK_V3.splits[2]))
BLOOM = PreType((_NO_STOPS,))
VIKING = PreType((_NO_STOPS, r"\p{N}"))
CHAMELEON = PreType((
  "<sentinel:[0-9]+>", "IMGIMG[A-I]{1,4}Z", r"[\t\n]|    |  ", r"\p{N}", r"[\p{P}$+<=>^`|~]", _GPT2), add_bos=True)
# cuts before each three ASCII digits that a multiple of three digits follow; a run's other digits stay with the text
# before them
_LEAD = "(?:[^0-9]|(?<![0-9])[0-9]{1,2}(?=(?:[0-9]{3})*+(?![0-9])))+"
SUPERBPE = PreType((r"\p{N}+", f"{_LEAD}|[0-9]{{3}}(?:{_LEAD})?"))
GEMMA4 = PreType((r"\n+",), add_bos=True, byte_level=False)
SARVAM = PreType(GEMMA4.splits, byte_level=False)
WHITESPACE = PreType((), byte_level=False, drops_spaces=True)

_TABLE: tuple[tuple[PreType, dict[str, str]], ...] = (
  (LLAMA3, {"llama-bpe": "Llama 3", "llama3": "Llama 3", "llama-v3": "Llama 3", "falcon3": "Falcon 3",
            "falcon-h1": "Falcon H1", "pixtral": "Pixtral", "midm-2.0": "Mi:dm 2.0", "lfm2": "LFM2",
            "jina-v5-nano": "Jina embeddings v5 nano"}),
  (JAIS2, {"jais-2": "Jais 2"}), (MINICPM5, {"minicpm5": "MiniCPM 5"}),
  (DBRX, {"dbrx": "DBRX, OLMo 2", "smaug-bpe": "Smaug", "chatglm-bpe": "GLM-4 9B"}),
  (GLM4, {"glm4": "GLM-4, GLM-4.5, GLM-4.7", "glm5": "GLM-5"}),
  (QWEN2, {"qwen2": "Qwen 1.5, Qwen 2, Qwen 2.5, Qwen 3", "deepseek-r1-qwen": "DeepSeek R1 distilled to Qwen",
           "kormo": "KORMo", "megrez": "Megrez", "stablelm2": "StableLM 2", "hunyuan": "Hunyuan A13B",
           "solar-open": "Solar Open", "grok-2": "Grok 2", "f2llmv2": "F2LLM v2",
           "bailingmoe": "Ling", "bailingmoe2": "Ling 2, Ring 2", "llada-moe": "LLaDA MoE"}),
  (UFAKZEKA, {"ufakzeka": "ufakzeka"}), (LAGUNA, {"laguna": "Laguna"}), (EXAONE_MOE, {"exaone-moe": "K-EXAONE"}),
  (SEED_CODER, {"seed-coder": "Seed-Coder, Seed-OSS"}),
  (QWEN35, {"qwen35": "Qwen 3.5"}),
  (GPT2, {"gpt-2": "GPT-2", "phi-2": "Phi 2", "gigachat": "GigaChat", "a.x-4.0": "A.X 4.0", "mellum": "Mellum",
          "exaone4": "EXAONE 4", "mpt": "MPT", "olmo": "OLMo, OLMoE", "jais": "Jais", "trillion": "Trillion",
          "granite-docling": "Granite Docling", "modern-bert": "ModernBERT", "roberta-bpe": "RoBERTa",
          "jina-v1-en": "Jina reranker v1", "jina-v2-code": "Jina embeddings v2 code",
          "jina-de": "Jina embeddings v2 German", "jina-v2-de": "Jina embeddings v2 German",
          "jina-es": "Jina embeddings v2 Spanish", "jina-v2-es": "Jina embeddings v2 Spanish"}),
  (STARCODER, {"starcoder": "StarCoder 2", "smollm": "SmolLM, SmolLM 2", "command-r": "Command R", "refact": "Refact",
               "codeshell": "CodeShell", "exaone": "EXAONE 3", "minerva-7b": "Minerva", "mellum2": "Mellum 2"}),
  (FALCON, {"falcon": "Falcon"}),
  (DEEPSEEK_LLM, {"deepseek-llm": "DeepSeek LLM, DeepSeek V2"}),
  (DEEPSEEK_CODER, {"deepseek-coder": "DeepSeek Coder"}),
  (DEEPSEEK_V3, {"deepseek-v3": "DeepSeek V3, DeepSeek R1", "hunyuan-dense": "Hunyuan dense", "hy_v4": "Hunyuan 4",
                 "joyai-llm": "JoyAI"}),
  (TEKKEN, {"tekken": "Mistral Nemo and later"}),
  (GPT4O, {"gpt-4o": "gpt-oss, GPT-4o", "llama4": "Llama 4", "kanana2": "Kanana 2", "talkie": "Talkie",
           "minimax-m2": "MiniMax M2"}),
  (KIMI, {"kimi-k2": "Kimi K2, Moonlight"}),
  (YOUTU, {"youtu": "Youtu-LLM"}),
  (GRANITE_SMALL, {"granite-embed-multi-97m": "Granite Embedding 97M"}),
  (COHERE2_MOE, {"cohere2moe": "Cohere 2 MoE, North Mini", "tiny_aya": "Tiny Aya"}),
  (SPARK, {"spark2_5": "Spark X2.5"}), (AFMOE, {"afmoe": "Trinity"}), (CHAMELEON, {"chameleon": "Chameleon"}),
  (BLOOM, {"bloom": "BLOOM", "gpt3-finnish": "GPT-3 Finnish", "poro-chat": "Poro"}), (VIKING, {"viking": "Viking"}),
  (SUPERBPE, {"superbpe": "OLMo 2 with SuperBPE"}), (SARVAM, {"sarvam-moe": "Sarvam"}),
  (GEMMA4, {"gemma4": "Gemma 4", "granite-embed-multi-311m": "Granite Embedding 311M"}),
  (WHITESPACE, {"whitespace": "Jina embeddings v2 Chinese"}), (DEFAULT, {"default": "files that do not say"}))

PRE_TYPES: dict[str, PreType] = {name: kind for kind, names in _TABLE for name in names}
PRE_MODELS: dict[str, str] = {name: models for _, names in _TABLE for name, models in names.items()}
