// The settings of a conversation: their names, limits and meaning, and the request's fields that they make.
export const NUMBERS = [
  {name: "temperature", label: "Temperature", min: 0, max: 5, step: "any",
   hint: "Higher surprises more; 0 takes the likeliest token."},
  {name: "top_p", label: "Top p", min: 0, max: 1, step: "any", hint: "Only the likeliest tokens that sum up to this."},
  {name: "top_k", label: "Top k", min: 0, max: 1000000, step: 1, hint: "Only so many likeliest tokens; 0: all."},
  {name: "min_p", label: "Min p", min: 0, max: 1, step: "any", hint: "Only tokens this likely beside the likeliest."},
  {name: "max_tokens", label: "Longest answer", min: 1, max: 10000000, step: 1, hint: "In tokens.", empty: "no limit"},
  {name: "seed", label: "Seed", min: 0, max: 2 ** 53 - 1, step: 1, hint: "The same seed gives the same answer.",
   empty: "random"},
  {name: "presence_penalty", label: "Presence penalty", min: -2, max: 2, step: "any",
   hint: "Against tokens used before.", empty: "0"},
  {name: "frequency_penalty", label: "Frequency penalty", min: -2, max: 2, step: "any",
   hint: "The same, by how often.", empty: "0"},
]
export const THINKING = [
  ["", "As the model likes"], ["none", "Off"], ["low", "Low effort"], ["medium", "Medium effort"],
  ["high", "High effort"],
]

// Settings with what is known and possible, and nothing else.
export function cleaned(given) {
  const found = {system: typeof given?.system === "string" ? given.system : "", thinking: ""}
  if (THINKING.some(([value]) => value === given?.thinking)) found.thinking = given.thinking
  for (const {name, min, max, step} of NUMBERS) {
    const value = given?.[name]
    if (Number.isFinite(value) && value >= min && value <= max && (step !== 1 || Number.isInteger(value))) {
      found[name] = value
    }
  }
  return found
}

export function fields(settings) {
  const found = {}
  for (const {name} of NUMBERS) if (settings[name] !== undefined) found[name] = settings[name]
  if (settings.thinking) {
    found.reasoning_effort = settings.thinking
    found.chat_template_kwargs = {enable_thinking: settings.thinking !== "none"}
  }
  return found
}
