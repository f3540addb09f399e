"""
The figures of the README and of docs/performance.md: tables and sentences from files in bench/results/.

readme_tables.py writes them.
"""
import json
import pathlib
import re
import statistics
import textwrap
from collections.abc import Iterator
from typing import Any

from bench.published import published

RESULTS, OURS, LLAMA = pathlib.Path(__file__).parents[2] / "bench" / "results", "tinygrad_llm", "llama.cpp"
# the measurements that the README shows. For newer figures, write their files here, then run `make readme`
STARTS_PAIRS = "starts-2026-11-27-1746.json"  # of two checkouts
DECODE, DEEP, ABLATION = "peers-2026-11-25.json", "deep-2026-11-23.json", "ablate-2026-11-22.json"
PROMPTS = ("prompts-2026-11-25.json", "prompts-types-2026-11-25.json", "prompts-floats-2026-11-25.json",
           "prompts-deep-2026-11-25.json", "prompts-moe-2026-11-25.json", "prompts-deepseek-2026-11-25.json")
ELSEWHERE = ("prompts-types-2026-11-23.json", "prompts-floats-2026-11-23.json", "batches-2026-11-23.json")
PROMPTS_BEFORE, BATCHES = "depth-2026-11-22.json", "batches-2026-11-25-2.json"
EARLIER, STOCK = "peers-2026-11-21-2.json", "peers-2026-11-21-1.json"
EXPERTS, EXPERTS_WITHOUT = "moe-2026-11-22.json", "moe-without-2026-11-22.json"
FAMILIES = "families-2026-11-28.json"
REPORT, REPORT_BEFORE = "report-2026-11-23.json", "report-2026-11-22.json"
ESTIMATES = "report-2026-11-24.json"  # newer estimates than the ones in REPORT
TRAINED, STARTS = "real-models-2026-11-25-1402.json", "starts-2026-11-27-1748.json"
SERVE = "serve-2026-11-28-1307.json"
BEAM = ("beam-2026-11-23.json", "beam-population-2026-11-23.json")
GPU = ("gpu-nvidia-h100-80gb-hbm3-2026-11-26-1804.json", "gpu-nvidia-h100-80gb-hbm3-8b-2026-11-26-1806.json")
OTHER_GPUS = ("gpu-nvidia-h200-2026-11-27-1832.json",)  # of cards for which nothing is published
Row = dict[str, Any]

def load(file: str) -> dict[str, Any]: return json.loads((RESULTS / file).read_text())

def link(file: str) -> str: return f"[{file}](../bench/results/{file})"

def pairs(report: dict[str, Any]) -> Iterator[tuple[str, str, Row, Row]]:
  """(type of the weights, test, our row, llama.cpp's row) for each test with both."""
  for model in report["models"]:
    rows = {(r["test"], r["peer"]): r for r in model["rows"]}
    for (test, peer), row in rows.items():
      if peer == OURS and (test, LLAMA) in rows: yield model["model"].split()[-1], test, row, rows[test, LLAMA]

def decode_head(what: str) -> str:
  return f"| {what}, tokens a second | here | of read bandwidth | llama.cpp | ratio |\n|---|---:|---:|---:|---:|\n"

def decode_row(label: str, ours: Row, llama: Row) -> str:
  return (f"| {label} | {ours['median_ts']:.1f} | {ours['share']:.0%} | {llama['median_ts']:.1f} | "
          f"{ours['vs'][LLAMA]:.2f} |\n")

def paragraph(text: str) -> str: return textwrap.fill(text, 118, break_long_words=False, break_on_hyphens=False) + "\n"

def model_of(report: dict[str, Any], kind: str) -> dict[str, Any]:
  return next(model for model in report["models"] if model["model"].endswith(f" {kind}"))

def median_of(report: dict[str, Any], kind: str, peer: str) -> float:
  """Median decode speed with a type of weights, in tokens a second."""
  rows = model_of(report, kind)["rows"]
  return next(r["median_ts"] for r in rows if r["peer"] == peer and r["test"].startswith("tg"))

def bandwidths(report: dict[str, Any]) -> str:
  """The range of the models' median bandwidths."""
  medians = [model["bandwidth_gbs"][1] for model in report["models"]]
  return f"{min(medians):.0f} and {max(medians):.0f} GB/s"

def speed() -> str:
  """The README's table: six rows of all that docs/performance.md has."""
  decode, prompts, moe, found = load(DECODE), load(PROMPTS[0]), load(EXPERTS), load(TRAINED)
  out = "| tokens a second | here | llama.cpp | ratio |\n|---|---:|---:|---:|\n"
  def row(label: str, here: float, there: float, ratio: float) -> str:
    return f"| {label} | {here:.1f} | {there:.1f} | {ratio:.2f} |\n"
  by_kind = {kind: (ours, llama) for kind, test, ours, llama in pairs(decode) if test.startswith("tg")}
  for kind in ("Q4_K_M", "Q8_0"):
    ours, llama = by_kind[kind]
    out += row(f"decode, 1B Llama shape, {kind}", ours["median_ts"], llama["median_ts"], ours["vs"][LLAMA])
  ours, llama = next((ours, llama) for _, test, ours, llama in pairs(prompts) if test == "pp512")
  out += row("prompt of 512 tokens, 1B Llama shape, Q4_K_M", ours["median_ts"], llama["median_ts"], ours["vs"][LLAMA])
  ours, llama = next((ours, llama) for _, _, ours, llama in pairs({"models": moe["models"][:1]}))
  out += row(f"decode, {shape_of(moe['models'][0]['file'])}", ours["median_ts"], llama["median_ts"], ours["vs"][LLAMA])
  for name, model in found["models"].items():
    test = model["speed"]["tg128"]
    out += row(f"decode, {name} (trained)", test["here"], test[LLAMA], test["ratio"])
  machine = decode["machine"]
  return out + "\n" + paragraph(
    f"{decode['threads']} threads on {machine['cores']} cores ({machine['cpu']}), {decode['date'][:10]}; the row with "
    f"experts is of {moe['date'][:10]}. Both programs ran the same file in turns. The ratio is the median of "
    "neighbouring runs.")

def figures() -> str:
  decode, deep, earlier, stock = (load(file) for file in (DECODE, DEEP, EARLIER, STOCK))
  out = decode_head("decode")
  for kind, test, ours, llama in pairs(decode):
    if test.startswith("tg"): out += decode_row(kind, ours, llama)
  for kind, test, ours, llama in pairs(deep):
    if m := re.fullmatch(r"tg\d+ @ d(\d+)", test):
      out += decode_row(f"{kind}, after {int(m[1]):,} tokens", ours, llama)
  machine, peak = decode["machine"], model_of(earlier, "Q4_K_M")["bandwidth_gbs"][1]
  then, slow = ([median_of(*what) for what in which] for which in (
    [(earlier, "Q4_K_M", peer) for peer in (OURS, LLAMA)], [(stock, kind, "stock") for kind in ("Q4_K_M", "Q6_K")]))
  return out + "\n" + paragraph(
    f"Shape of Llama 3.2 1B, random weights, {decode['threads']} threads on {machine['cores']} cores "
    f"({machine['cpu']}, {machine['system']}), {decode['date'][:10]}, commit {decode['versions']['commit']}: "
    f"{link(DECODE)}, {link(DEEP)}. Compare figures of one row only: the machine is shared, and its read bandwidth "
    f"moved between {bandwidths(decode)}. An earlier run at {peak:.0f} GB/s had {then[0]:.1f} for Q4_K_M and "
    f"{then[1]:.1f} for llama.cpp ({link(EARLIER)}). Stock tinygrad had {slow[0]:.2f}, and {slow[1]:.2f} with Q6_K "
    f"({link(STOCK)}).")

def shape_of(file: str) -> str:
  """The README's name for a model of bench/models.py."""
  shape, layers, kind = re.fullmatch(r"(.*)-(\d+)L-(.*)", pathlib.Path(file).stem).groups()  # type: ignore[union-attr]
  return f"{shape}, {layers} layers, {kind}"

def prompts() -> str:
  """Prefill speeds, and one from before weights were dequantised once for all tokens."""
  reports, before = [load(file) for file in PROMPTS], load(PROMPTS_BEFORE)
  out, machine = "| prompt, tokens a second | here | llama.cpp | ratio |\n|---|---:|---:|---:|\n", reports[0]["machine"]
  for model in [model for report in reports for model in report["models"]]:
    for _, test, ours, llama in pairs({"models": [model]}):
      if m := re.fullmatch(r"pp(\d+)(?: @ d(\d+))?", test):
        after = f" after {int(m[2]):,}" if m[2] else ""
        out += (f"| {shape_of(model['file'])}, {m[1]} tokens{after} | {ours['median_ts']:.1f} | "
                f"{llama['median_ts']:.1f} | {ours['vs'][LLAMA]:.2f} |\n")
  then = next(ours["vs"][LLAMA] for kind, test, ours, _ in pairs(before) if (kind, test) == ("Q4_K_M", "pp128"))
  few = "; ".join(shape_of(model["file"]) + " " + ", ".join(f"{x:.2f}" for n, x in model["ratios"].items() if n != "1")
                  for model in load(BATCHES)["models"])
  return out + "\n" + "\n".join(map(paragraph, (
    f"Random weights and random tokens, {reports[0]['threads']} threads on {machine['cores']} cores "
    f"({machine['cpu']}), {reports[0]['date'][:10]}, llama.cpp at the best of its settings: "
    f"{', '.join(map(link, PROMPTS))}. Before weights were dequantised once for all tokens, a prompt of 128 tokens in "
    f"Q4_K_M had a ratio of {then:.2f} on another machine ({before['machine']['cpu']}, {link(PROMPTS_BEFORE)}).",
    f"Steps of 2, 4 and 8 rows (speculation, several sequences) relative to the time of one row ({link(BATCHES)}): "
    f"{few}. Earlier figures of an {load(ELSEWHERE[0])['machine']['cpu']}: {', '.join(map(link, ELSEWHERE))}.")))

def gpu_speeds(figures: Row) -> Iterator[float]:
  """Tokens a second of greedy answers, sampled answers and a prompt of 512."""
  return (figures[name]["ts"] for name in ("answer, greedy", "answer, sampled", "pp512"))

def gpu() -> str:
  """`make gpu-check`'s speeds of models with random weights, beside llama.cpp's published figures for the GPU."""
  reports = [load(file) for file in GPU]
  known = published(reports[0]["gpu"])
  assert known is not None and len({report["gpu"] for report in reports}) == 1
  text = (f"| {reports[0]['gpu']}, tokens a second | answer, greedy | sampled | of llama.cpp's GB/s | "
          "prompt of 512 | of llama.cpp's TFLOPS |\n|---|---:|---:|---:|---:|---:|\n")
  for report in reports:
    for part, with_bytes in (("speed", ""), ("speed8", ", `Q8_ACTIVATIONS=1`")):
      if part not in report["parts"]: continue
      row = report["parts"][part]["figures"]
      greedy, sampled, prompt = gpu_speeds(row)
      read, done = greedy * row["bytes_per_token"] / 1e9, prompt * 2 * row["n_params"] / 1e12
      text += (f"| {row['model']}{with_bytes} | {greedy:,.0f} | {sampled:,.0f} | {read / known.gbs:.0%} | "
               f"{prompt:,.0f} | {done / known.tflops:.0%} |\n")
  others = list[str]()
  for file in OTHER_GPUS:
    found = load(file)["parts"]["speed"]["figures"]
    greedy, sampled, prompt = gpu_speeds(found)
    others.append(f"An {load(file)['gpu']} had {greedy:,.0f}, {sampled:,.0f} and {prompt:,.0f} with {found['model']}, "
                  f"and all numbers were right ({link(file)}).")
  return text + "\n" + paragraph(
    f"All numbers were right ({', '.join(map(link, GPU))}). llama.cpp did not run here. Its figures are published "
    f"ones for the same card, a 7B Llama in Q4_0: {known.gbs:,.0f} GB/s of weights, {known.tflops:,.0f} TFLOPS. "
    + " ".join(others))

def experts() -> str:
  report = load(EXPERTS)
  out = decode_head("decode with experts")
  for model in report["models"]:
    rows = {row["peer"]: row for row in model["rows"]}
    out += decode_row(shape_of(model["file"]), rows[OURS], rows[LLAMA])
  machine = report["machine"]
  return out + "\n" + paragraph(
    f"The first layers and the head of each shape, random weights and tokens, {report['threads']} threads "
    f"on {machine['cores']} cores ({machine['cpu']}), {report['date'][:10]}: {link(EXPERTS)}; read bandwidth "
    f"between {bandwidths(report)}. The first model without one pass, relative to the speed with all passes: "
    f"{experts_without()} ({link(EXPERTS_WITHOUT)}).")

def families() -> str:
  """Prompts and decode of recurrent models, Gemma 4 and experts."""
  report = load(FAMILIES)
  out = ("| tokens a second | prompt of 256, here | llama.cpp | ratio | decode, here | llama.cpp | ratio |\n"
         "|---|---:|---:|---:|---:|---:|---:|\n")
  for model in report["models"]:
    cells = [f"{ours['median_ts']:.1f} | {llama['median_ts']:.1f} | {ours['vs'][LLAMA]:.2f}"
             for _, _, ours, llama in pairs({"models": [model]})]
    out += f"| {shape_of(model['file'])} | {' | '.join(cells)} |\n"
  machine, dates = report["machine"], sorted({model["date"][:10] for model in report["models"]})
  def ratios(model: Row) -> str:
    found = " and ".join(f"{ours['vs'][LLAMA]:.2f}" for *_, ours, _ in pairs({"models": [model]}))
    return f"{shape_of(model['file'])} {found}"
  return out + "\n" + paragraph(
    f"The first layers of each shape with a vocabulary of 32,000, random weights and tokens, {report['threads']} "
    f"threads on {machine['cores']} cores ({machine['cpu']} with AVX2), {' and '.join(dates)}: {link(FAMILIES)}. The "
    f"machine is shared, and read bandwidth was between {bandwidths(report)}. An earlier run had these ratios of a "
    f"prompt and of decode: {'; '.join(map(ratios, report['earlier']))}.")

def experts_without() -> str:
  (model,) = load(EXPERTS_WITHOUT)["models"]
  ours = next(row for row in model["rows"] if row["peer"] == OURS)
  shares = {switch(row["peer"]): statistics.median(of_rounds(row, ours)) for row in model["rows"] if row is not ours}
  return ", ".join(f"{name} {share:.2f}" for name, share in sorted(shares.items(), key=lambda item: item[1]))

def trained_head(what: str) -> str:
  """The head of a table with two columns for each trained model, ours and llama.cpp's."""
  models = load(TRAINED)["models"]
  return f"| {what} | " + " | ".join(f"{name}, here | llama.cpp" for name in models) + " |\n|---|" \
    + "---:|---:|" * len(models) + "\n"

def trained_row(label: str, cells: Iterator[tuple[str, str]]) -> str:
  """A row of such a table."""
  return f"| {label} | {' | '.join(f'{here} | {there}' for here, there in cells)} |\n"

def trained() -> str:
  """Trained models: speed beside llama.cpp's, and wall times of whole processes."""
  found, starts = load(TRAINED), load(STARTS)
  models = found["models"].values()
  out = trained_head("trained models")
  for label, test in (("decode, tokens a second", "tg128"), ("prompt of 256 tokens, tokens a second", "pp256")):
    speeds = [m["speed"][test] for m in models]
    out += trained_row(label, ((f"{s['here']:.1f} ({s['ratio']:.2f}x)", f"{s[LLAMA]:.1f}") for s in speeds))
  walls = {model["model"]: model["warm"]["wall"] for model in starts["models"]}
  out += trained_row(f"`run` of {starts['tokens']} tokens, second start, s",
                     ((f"{walls[m['file']]:.2f}", "") for m in models))
  bandwidths = " and ".join(f"{m['speed']['bandwidth_gbs'][1]:.0f}" for m in models)
  machine = found["machine"]
  return out + "\n" + paragraph(
    f"SmolLM2-135M-Instruct in Q4_1 and Gemma 3 270M in Q4_K_M, {machine['cores']} cores ({machine['cpu']}), "
    f"{found['date'][:10]} and {starts['date'][:10]}, read bandwidth {bandwidths} GB/s: {link(TRAINED)}, "
    f"{link(STARTS)}, by `make real-models` and `make start`. [Accuracy](accuracy.md) has their numbers.")

def numbers() -> str:
  """Trained models' numbers beside llama.cpp's."""
  found = load(TRAINED)
  models = list(found["models"].values())
  out = trained_head("")
  measured, answers = [m["perplexity"] for m in models], [m["answers"] for m in models]
  out += trained_row("perplexity", ((f"{n['here']:.3f}", f"{n[LLAMA]:.3f}") for n in measured))
  out += trained_row("perplexity, float", ((f"{n['float']:.3f}", "") for n in measured))
  out += trained_row("mean KL divergence from float", (tuple(f"{kl:.4f}" for kl in n["kl"]) for n in measured))
  out += trained_row("greedy answers that equal float's, of ten",
             ((str(a["here"]["same"]), str(a[LLAMA]["same"])) for a in answers))
  machine = found["machine"]
  return out + "\n" + paragraph(
    f"SmolLM2-135M-Instruct in Q4_1 and Gemma 3 270M in Q4_K_M, {measured[0]['tokens']:,} tokens counted, answers of "
    f"{answers[0]['tokens']} tokens, {machine['cores']} cores ({machine['cpu']}), {found['date'][:10]} "
    f"({link(TRAINED)}).")

def starts() -> str:
  """First starts of an earlier commit and of a later one, in turns."""
  found = load(STARTS_PAIRS)
  names = {"smollm2.gguf": "SmolLM2 135M", "gemma.gguf": "Gemma 3 270M"}
  out = "| `run`, 12 tokens, empty caches | s | before | ratio | processor s | before | ratio |\n"
  out += "|---|---:|---:|---:|---:|---:|---:|\n"
  for model in found["models"]:
    cells = list[str]()
    for what in ("wall", "cpu"):
      before, now = (statistics.median(pair[i][what] for pair in model["pairs"]) for i in range(2))
      cells += [f"{now:.1f}", f"{before:.1f}", f"{model['ratios'][what]:.2f}"]
    out += f"| {names.get(model['model'], model['model'])} | {' | '.join(cells)} |\n"
  machine = found["machine"]
  return out + "\n" + paragraph(
    f"Before: commit {found['against']}. {machine['cores']} cores ({machine['cpu']}), {found['date'][:10]}, medians of "
    f"{len(found['models'][0]['pairs'])} pairs in turns ({link(STARTS_PAIRS)}), by `make start`.")

def report() -> str:
  found, targets = load(REPORT), load(ESTIMATES)["targets"]
  steps = list(next(target for target in targets.values() if "failed" not in target))
  out = f"| compiled for | card | kernels | {' | '.join(f'{name}, ms' for name in steps)} |\n"
  out += "|---|---|---:|" + "---:|" * len(steps) + "\n"
  for target, step in targets.items():
    if "failed" in step: continue
    ms = " | ".join(f"{s['estimate_us'] / 1e3:,.2f} ({s['bytes'] / s['card']['gbs'] * 1e-3 / s['estimate_us']:.0%})"
                    for s in step.values())
    first = step[steps[0]]
    out += f"| {target} | {first['card']['name']} | {first['kernels']} | {ms} |\n"
  out += "\n" + paragraph(
    f"Estimates of the [cost model](cost-model.md) of {load(ESTIMATES)['date'][:10]}, not measurements, for "
    f"{found['file']}; later passes are not in them. The percentage says how "
    f"much of the time the kernels' bytes take at the card's bandwidth. NV compiles for a Hopper card, but tinygrad "
    f"0.14.0 does not open one. `make report` writes them on one page, with "
    f"the worst kernels of each step: {link(ESTIMATES.replace('.json', '.md'))}.")
  earlier = load(REPORT_BEFORE)
  profile, before = (next(p for p in x["measured"]["profiles"] if p["n_depth"]) for x in (found, earlier))
  out += (f"\n| a token after {profile['n_depth']:,} others, measured | kernels | us | share | GB/s | of peak | "
          f"{earlier['date'][:10]}: kernels | us |\n|---|---:|---:|---:|---:|---:|---:|---:|\n")
  then = {r["name"]: f"{r['kernels']} | {r['us']:,.0f} |\n" for r in before["rows"]}
  for r in profile["rows"]:
    speed = (f"{r['gbs']:.1f}", f"{r['peak_share']:.0%}") if r["gbs"] else ("", "")
    out += f"| {r['name']} | {r['kernels']} | {r['us']:,.0f} | {r['share']:.1%} | {' | '.join(speed)} | "
    out += then.pop(r["name"], "| |\n")
  for name, rest in then.items(): out += f"| {name} | | | | | | {rest}"
  now, was = (f"{sum(r['kernels'] for r in p['rows'])} | {p['sum_us']:,.0f}" for p in (profile, before))
  out += f"| all | {now} | | | | {was} |\n"
  return out + "\n" + paragraph(
    f"The rows' sum is {profile['sum_us'] / profile['measured_us']:.1%} of the step as measured; the machine reads "
    f"{profile['peak_gbs']:.1f} GB/s ({found['machine']['cpu']}, {found['machine']['cores']} cores, "
    f"{found['date'][:10]}, `bench --profile`). It read {before['peak_gbs']:.1f} GB/s when the earlier figures were "
    f"taken ({link(REPORT_BEFORE)}).")

RENAMED = {  # passes that these files know by an earlier name
  "matvec": "gemv", "passes": "hooks", "nested_reduce": "factor_sums", "flat_reduce": "merge_sums", "bounds": "clamps",
  "int8_dots": "dot_int8_cpu", "invariant_sums": "hoist_sums", "invariant_factors": "hoist_factors",
  "small_kernels": "kernel_chains", "joint_products": "join_products", "minimum_bitwidth": "narrow",
  "group_scales": "hoist_scales", "bitfield_extract": "merge_fields", "warp_reduce": "shuffle_reduce",
  "dp4a": "dot_int8_gpu", "beam_cache": "beam_search"}

def switch(peer: str) -> str:
  """The pass that a peer is without, by its present name."""
  name = peer.removeprefix("NO_").removesuffix("=1").lower()
  return f"`{RENAMED.get(name, name)}`"

def of_rounds(row: Row, ours: Row) -> list[float]:
  """A row's speed relative to ours in each round with both. Older files have the same rounds of both."""
  work = row["tokens"] * row["passes"] / (ours["tokens"] * ours["passes"])
  ns = dict(zip(ours.get("rounds", range(len(ours["samples_ns"]))), ours["samples_ns"]))
  rounds = row.get("rounds", range(len(row["samples_ns"])))
  return [ns[i] / b * work for i, b in zip(rounds, row["samples_ns"])]

def ablation() -> str:
  report = load(ABLATION)
  (model,) = report["models"]
  ours = next(r for r in model["rows"] if r["peer"] == OURS)
  table = "| without | of the speed with all | in each round |\n|---|---:|---:|\n"
  for row in sorted(model["rows"], key=lambda row: row["vs"][OURS]):
    if row is ours: continue
    rounds = of_rounds(row, ours)
    unclear = " (not told from noise)" if min(rounds) <= 1 <= max(rounds) else ""
    table += f"| {switch(row['peer'])} | {statistics.median(rounds):.2f}{unclear} | "
    table += f"{min(rounds):.2f} to {max(rounds):.2f} |\n"
  same = [switch(peer["name"]) for peer in model["peers"] if peer["same"]]
  idle: dict[str, list[str]] = {}
  for peer in model["peers"]:
    if peer["idle"]: idle.setdefault(peer["idle"], []).append(switch(peer["name"]))
  return paragraph(
    f"One pass off at a time, decode of {pathlib.Path(model['file']).stem} (one layer and the head) on "
    f"{report['machine']['cores']} cores ({report['machine']['cpu']}), {report['date'][:10]}, "
    f"{report['repetitions']} rounds in turns ({link(ABLATION)}):") + "\n" + table + "\n" + paragraph(
    f"Kernels stay the same without {', '.join(same)}. " + " ".join(
      f"Not timed ({reason}): {', '.join(names)}." for reason, names in idle.items()))
