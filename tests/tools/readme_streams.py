"""The figures of docs/streams.md, from files of bench/streams.py. readme_tables.py writes them."""
import statistics
from typing import Any

from tests.tools.readme_figures import link, load, paragraph, shape_of

# for newer figures, write their file here, then run `make readme`
STREAMS = "streams-2026-11-29-0005.json"
GENERATE, HERE, THERE = "generate", "streams", "llama-server"
NAMES = {"SmolLM2-135M-Instruct.Q4_1.gguf": "SmolLM2-135M, Q4_1"}

def name_of(model: dict[str, Any]) -> str: return NAMES.get(model["file"]) or shape_of(model["file"])

def speed() -> str:
  """Tokens a second of several streams together, and their ratio to generate()'s in the same round."""
  found = load(STREAMS)
  counts = [*found["models"][0]["decode"]["rates"][HERE]]
  text = f"| tokens a second, all together | `generate` | {' | '.join(map(_streams, counts))} |\n"
  text += "|---|---:|" + "---:|" * len(counts) + "\n"
  for model in found["models"]:
    decode = model["decode"]
    alone = statistics.median(decode["rates"][GENERATE]["1"])
    for name, label in ((HERE, ""), (THERE, ", llama-server")):
      rates, ratios = ({n: of[name][n] for n in counts} for of in (decode["rates"], decode["ratios"]))
      cells = [f"{statistics.median(rates[n]):.0f} ({ratios[n][1]:.2f}x)" for n in counts]
      text += f"| {name_of(model)}{label} | {f'{alone:.0f}' if name == HERE else ''} | {' | '.join(cells)} |\n"
  first, machine = found["models"][0]["decode"], found["machine"]
  spread = "; ".join(
    f"{name_of(model)} " + ", ".join(f"{q[0]:.2f} to {q[2]:.2f}" for q in model["decode"]["ratios"][HERE].values())
    for model in found["models"])
  return text + "\n" + paragraph(
    f"{found['threads']} threads on {machine['cores']} cores ({machine['cpu']}), {found['date'][:10]}, greedy answers "
    f"of {first['tokens']} tokens after prompts of {first['depth']}: {link(STREAMS)}, by `make streams`. All take "
    f"turns in {len(first['bandwidth'])} rounds; the ratio is to `generate` in the same round, the median. Quartiles "
    f"of the streams' ratios: {spread}. The machine is shared, and read bandwidth was {_range(found)} GB/s. "
    f"llama-server is the one of {found['versions'][THERE].split(',')[0]}, with a slot for each answer, over HTTP. Its "
    "package is compiled for AVX2, while kernels here use all that the processor has.")

def beside() -> str:
  """Second turns, and streams while a long prompt is read."""
  found = load(STREAMS)
  text, rounds = "| | here | llama-server |\n|---|---:|---:|\n", len(found["models"][0]["prompt"][HERE])
  for model in found["models"]:
    name, turn, prompt = name_of(model), model["turn"], model["prompt"]
    text += f"| {name}: first token of a second turn, ms | " + " | ".join(
      f"{statistics.median(turn[side]) * 1e3:.0f}" for side in (HERE, THERE)) + " |\n"
    for label, key, show in (("four streams beside a long prompt, of their speed without it", "share", "{:.0%}"),
                             ("the longest gap of one of them, ms", "gap_ms", "{:.0f}"),
                             ("the long prompt's first token, s", "first_token_s", "{:.1f}")):
      text += f"| {name}: {label} | " + " | ".join(
        show.format(statistics.median(r[key] for r in prompt[side])) for side in (HERE, THERE)) + " |\n"
  return text + "\n" + paragraph(
    "A second turn has 2,000 tokens that an earlier prompt had, too, and 16 new ones. The long prompt has 4,096 "
    f"tokens ({rounds} round{'s' if rounds > 1 else ''}). The server reads it in batches of 2,048 tokens, its default, "
    f"and gives nobody a token meanwhile. Here each of the four answers grew by {_grown(found)} tokens. A "
    "step takes longer with each token, so their speed without it is the mean of a step's times before and after.")

def _streams(count: str) -> str: return f"{count} stream{'s' if count != '1' else ''}"

def _range(found: dict[str, Any]) -> str:
  medians = [statistics.median(model["decode"]["bandwidth"]) for model in found["models"]]
  return " and ".join(f"{b:.0f}" for b in medians)

def _grown(found: dict[str, Any]) -> str:
  """Tokens of one stream while the long prompt was read."""
  rounds = [model["prompt"][HERE] for model in found["models"]]
  return " and ".join(f"{statistics.median(r['while'] * r['first_token_s'] for r in of) / 4:.0f}" for of in rounds)
