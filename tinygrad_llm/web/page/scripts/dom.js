// Elements made from names and texts. Nothing here, or anywhere in the page, reads markup.
const SVG = "http://www.w3.org/2000/svg"

// A property that is a function is a listener, "class" the classes, all else an attribute. Children: nodes, texts, lists
// of both; null and false are left out.
export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag)
  appendAll(element, children.flat())  // first: with dir=auto, each child that comes costs a look at all before it
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue
    if (typeof value === "function") element.addEventListener(name.slice(2), value)
    else if (name === "class") element.className = value
    else element.setAttribute(name, value === true ? "" : value)
  }
  return element
}

// One by one: a call takes only some ten thousand arguments.
export function appendAll(element, nodes) {
  for (const node of nodes) if (node !== null && node !== undefined && node !== false) element.append(node)
}

export const $ = id => document.getElementById(id)

const PATHS = {
  auto: "M12 4a8 8 0 1 0 0 16 8 8 0 0 0 0-16zM12 4v16M12 8h6M12 12h8M12 16h6",
  check: "M5 13l4 4L19 7", close: "M6 6l12 12M18 6L6 18",
  copy: "M9 9h10v11H9zM15 9V4H5v11h4", down: "M12 5v14M6 13l6 6 6-6", export: "M12 4v11M7 11l5 5 5-5M5 20h14",
  edit: "M4 20h4L19 9l-4-4L4 16zM13 7l4 4", help: "M3 7h18v10H3zM7 10.5h.01M11 10.5h.01M15 10.5h.01M8 14h8",
  import: "M12 16V5M7 9l5-5 5 5M5 20h14", left: "M15 6l-6 6 6 6", menu: "M4 7h16M4 12h16M4 17h16",
  moon: "M19 14.5A8 8 0 0 1 9.500 5 8 8 0 1 0 19 14.500z", more: "M8 5l9 7-9 7z", plus: "M12 5v14M5 12h14",
  redo: "M19.500 13a7.500 7.500 0 1 1-2-6.300L20 9M20 4v5h-5", right: "M9 6l6 6-6 6",
  search: "M11 5a6 6 0 1 0 0 12 6 6 0 0 0 0-12zM15.500 15.500L20 20", send: "M12 19V5M6 11l6-6 6 6",
  settings: "M4 8h9M17 8h3M4 16h3M11 16h9M13 8a2 2 0 1 0 4 0 2 2 0 1 0-4 0M7 16a2 2 0 1 0 4 0 2 2 0 1 0-4 0",
  stop: "M7 7h10v10H7z", sun: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM12 3v2M12 19v2M3 12h2M19 12h2M5.600 5.600L7 7" +
    "M17 17l1.400 1.400M5.600 18.400L7 17M17 7l1.400-1.400",
  trash: "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13M10 11v5M14 11v5",
}

export function icon(name) {
  const svg = document.createElementNS(SVG, "svg"), path = document.createElementNS(SVG, "path")
  svg.setAttribute("viewBox", "0 0 24 24")
  svg.setAttribute("aria-hidden", "true")
  path.setAttribute("d", PATHS[name])
  svg.append(path)
  return svg
}

// A button that shows only an icon; its name is read aloud and shown as a hint.
export function iconButton(name, label, onclick, properties = {}) {
  return h("button", {type: "button", class: "icon", "aria-label": label, title: label, onclick, ...properties},
           icon(name))
}

// Copies a text, and shows for a moment on the button that it did. Without HTTPS a browser has no clipboard API.
export async function copy(text, button) {
  try { await navigator.clipboard.writeText(text) } catch {
    const area = h("textarea", {class: "hidden", "aria-hidden": "true"})
    area.value = text
    document.body.append(area)
    area.select()
    document.execCommand("copy")
    area.remove()
  }
  const before = [...button.childNodes]
  button.replaceChildren(icon("check"), button.classList.contains("icon") ? "" : "Copied")
  say("Copied")
  setTimeout(() => button.replaceChildren(...before), 1500)
}

// Tells people who hear the page.
export function say(text) { $("status").textContent = text }

// A short message at the edge, with one thing to do about it.
export function toast(text, action = "", onclick = null, seconds = 8) {
  const close = () => element.remove()
  const button = action && h("button", {type: "button", class: "text", onclick: () => { close(); onclick() }}, action)
  const element = h("div", {class: "toast"}, h("span", {}, text), button || null,
                    iconButton("close", "Close this message", close))
  $("toasts").append(element)
  setTimeout(close, seconds * 1000)
}

export const plural = (count, what) => `${count.toLocaleString("en")} ${what}${count === 1 ? "" : "s"}`
