// Windows over the page: settings, the key, shortcuts, a question with yes or no.
import {$, h} from "./dom.js"
import {hasKey, useKey} from "./api.js"
import {conversations, save, server, shown} from "./chat.js"
import {NUMBERS, THINKING, cleaned} from "./options.js"
import {keep} from "./store.js"

export const SHORTCUTS = [
  ["Enter", "Send the question"], ["Shift + Enter", "A new line in it"], ["Esc", "Stop the answer"],
  ["Alt + N", "A new conversation"], ["Ctrl + K", "Search the conversations"], ["Alt + B", "Show or hide the list"],
  ["Alt + Q", "Write a question"], ["Alt + E", "Edit the last question"], ["Alt + R", "Answer again"],
  ["Alt + C", "Copy the last answer"], ["Alt + S", "Settings"], ["Alt + T", "Light or dark"],
  ["Alt + H", "These shortcuts"],
]

// A window that stays until it is closed. Resolves with the value of the button that did; "" for Escape.
function open(dialog) {
  document.body.append(dialog)
  dialog.addEventListener("click", event => { if (event.target === dialog) dialog.close("") })
  dialog.showModal()
  return new Promise(resolve => dialog.addEventListener("close", () => {
    dialog.remove()
    resolve(dialog.returnValue)
  }))
}

function dialog(title, id, ...children) {
  return h("dialog", {"aria-labelledby": id}, h("h2", {id}, title), ...children)
}

function buttons(element, ...pairs) {
  const row = pairs.map(([label, value, main]) =>
    h("button", {type: "button", class: main ? "main" : "", onclick: () => element.close(value)}, label))
  element.append(h("div", {class: "row"}, ...row))
}

export function confirm(title, text, yes) {
  const element = dialog(title, "confirm-title", h("p", {}, text))
  buttons(element, ["Cancel", ""], [yes, "yes", true])
  return open(element).then(value => value === "yes")
}

// A line of text from the user; null if there is none.
export function line(title, label, value, kind = "text", hint = "") {
  const input = h("input", {id: "line", type: kind, autocomplete: "off", spellcheck: "false"})
  input.value = value
  const element = dialog(title, "line-title", h("label", {for: "line"}, label), input,
                         hint && h("p", {class: "hint"}, hint))
  input.addEventListener("keydown", event => {
    if (event.key !== "Enter" || event.isComposing) return
    event.preventDefault()  // else the key would press the button that has the focus afterwards
    element.close("yes")
  })
  buttons(element, ["Cancel", ""], ["Save", "yes", true])
  const answer = open(element)
  input.select()
  return answer.then(found => found === "yes" && input.value.trim() ? input.value.trim() : null)
}

let asked = null  // the key's window, while it is open

// False if no key is given.
export function askForKey() {
  asked ||= line("An API key", "API key", "", "password", `${hasKey() ? "The key was not accepted. " : ""}The server ` +
                 "was started with keys. Yours stays in this tab, until it is closed.")
    .then(found => { asked = null; if (found) useKey(found); return found !== null })
  return asked
}

export function shortcuts() {
  const shown = keys => keys.split(" + ").flatMap((key, i) => [i ? " + " : "", h("kbd", {}, key)])
  const rows = SHORTCUTS.map(([keys, what]) => h("tr", {}, h("th", {scope: "row"}, ...shown(keys)), h("td", {}, what)))
  const element = dialog("Shortcuts", "shortcuts-title", h("table", {class: "keys"}, h("tbody", {}, ...rows)))
  buttons(element, ["Close", "", true])
  return open(element)
}

function defaultOf({name, empty}) {
  const value = server.defaults[name]
  return Number.isFinite(value) ? `${Math.round(value * 1000) / 1000}` : empty ?? ""
}

export function settings() {
  const conversation = shown(), now = conversation.settings
  const system = h("textarea", {id: "system", rows: "3", placeholder: "Such as: You answer briefly.", dir: "auto"})
  system.value = now.system
  const thinking = h("select", {id: "thinking"}, ...THINKING.map(([value, label]) => h("option", {value}, label)))
  thinking.value = now.thinking
  const inputs = NUMBERS.map(each => {
    const id = `set-${each.name}`
    const input = h("input", {id, type: "number", inputmode: "decimal", min: String(each.min), max: String(each.max),
                              step: String(each.step), placeholder: defaultOf(each), "aria-describedby": `${id}-hint`})
    input.value = now[each.name] ?? ""
    const field = h("div", {class: "field"}, h("label", {for: id}, each.label), input,
                    h("p", {class: "hint", id: `${id}-hint`}, each.hint))
    return {name: each.name, input, field}
  })
  const wrong = h("p", {class: "problem", role: "alert", hidden: true})
  const element = dialog("Settings", "settings-title",
    h("p", {class: "hint"}, "They belong to this conversation, and new ones begin with them. An empty field leaves " +
      "the choice to the server."),
    h("label", {for: "system"}, "System prompt"), system, h("label", {for: "thinking"}, "Thinking"), thinking,
    h("p", {class: "hint"}, "Only models that think heed this."),
    h("div", {class: "fields"}, ...inputs.map(each => each.field)), wrong)
  const reset = () => { for (const {input} of inputs) input.value = ""; thinking.value = ""; system.value = "" }
  const done = () => {
    const bad = inputs.find(({input}) => !input.checkValidity())
    wrong.hidden = !bad
    if (!bad) return element.close("yes")
    wrong.textContent = `${bad.field.firstChild.textContent}: ${bad.input.validationMessage}`
    bad.input.focus()
  }
  element.append(h("div", {class: "row"},
    h("button", {type: "button", class: "apart", onclick: reset}, "Reset"),
    h("button", {type: "button", class: "", onclick: askForKey}, hasKey() ? "Change the key" : "API key"),
    h("button", {type: "button", class: "main", onclick: done}, "Save")))
  element.classList.add("wide")
  return open(element).then(value => {
    if (value !== "yes") return
    const given = Object.fromEntries(inputs.filter(({input}) => input.value !== "").map(each => [each.name,
                                                                                             each.input.valueAsNumber]))
    conversation.settings = cleaned({...given, system: system.value, thinking: thinking.value})
    keep("settings", conversation.settings)
    if (conversations.has(conversation.id)) save(conversation)
    $("settings").classList.toggle("on", conversation.settings.system !== "")
  })
}
