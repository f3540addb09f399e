// Markdown's blocks as DOM nodes: paragraphs, headings, lists, quotes, tables, code. HTML is text like any other.
import {copy, h, icon} from "../dom.js"
import {inline} from "./inline.js"

const DEEPEST = 8  // blocks in blocks; deeper is a paragraph
const HEADING = /^ {0,3}(#{1,6})(?:\s|$)/
const RULE = /^ {0,3}(?:(?:\*\s*){3,}|(?:-\s*){3,}|(?:_\s*){3,})$/
const QUOTE = /^ {0,3}> ?/
const ITEM = /^([ \t]*)([-*+]|\d{1,9}[.)])(?:[ \t]+|$)/
const DELIMITER = /^ *\|? *:?-+:? *(?:\| *:?-+:? *)*\|? *$/

export function fence(line) {
  const found = /^( {0,3})(`{3,}|~{3,})(.*)$/.exec(line)
  if (!found || found[2][0] === "`" && found[3].includes("`")) return null
  return {indent: found[1].length, marks: found[2], language: found[3].trim().split(/\s/)[0].slice(0, 30)}
}

export function closesFence(line, {marks}) {
  const bare = line.trim()
  return bare.length >= marks.length && bare === marks[0].repeat(bare.length) && /^ {0,3}\S/.test(line)
}

// Code with its language and a button that copies it. `code` is the element to write to.
export function codeBlock(language, text = "") {
  const code = h("code", {}, text)
  const button = h("button", {type: "button", class: "text", "aria-label": "Copy this code",
                              onclick: () => copy(code.textContent, button)}, icon("copy"), "Copy")
  const label = language ? `Code in ${language}` : "Code"
  const element = h("div", {class: "code"}, h("div", {class: "bar"}, h("span", {}, language || "code"), button),
                    h("pre", {tabindex: "0", role: "group", "aria-label": label}, code))
  return {element, code}
}

export const split = text => text.replaceAll("\r\n", "\n").split("\n")

export function parse(lines, depth = 0) {
  const nodes = []
  for (let i = 0; i < lines.length;) {
    if (!lines[i].trim()) { i++; continue }
    const {node, next} = block(lines, i, depth)
    nodes.push(node)
    i = next
  }
  return nodes
}

// The block that begins at line i, which is not blank: its node, and the line after it.
export function block(lines, i, depth = 0) {
  const line = lines[i], opened = fence(line)
  if (opened) return fenced(lines, i, opened)
  const heading = HEADING.exec(line)
  if (heading) {
    const text = line.slice(heading[0].length).trim()
    return {node: h(`h${Math.min(6, heading[1].length + 2)}`, {dir: "auto"}, inline(trimHashes(text))), next: i + 1}
  }
  if (RULE.test(line)) return {node: h("hr"), next: i + 1}
  if (depth < DEEPEST && QUOTE.test(line)) return quote(lines, i, depth)
  if (isTable(lines, i)) return table(lines, i)
  if (depth < DEEPEST && ITEM.test(line)) return list(lines, i, depth)
  let next = i + 1
  while (next < lines.length && lines[next].trim() && !begins(lines, next)) next++
  const text = lines.slice(i, next).map(each => each.trimStart()).join("\n").trimEnd()
  return {node: h("p", {dir: "auto"}, inline(text)), next}
}

function trimHashes(text) {
  let end = text.length
  while (end && text[end - 1] === "#") end--
  return end === 0 || text[end - 1] === " " ? text.slice(0, end).trimEnd() : text
}

// Whether a block begins at line i that ends a paragraph.
function begins(lines, i) {
  const line = lines[i], item = ITEM.exec(line)
  return fence(line) !== null || HEADING.test(line) || RULE.test(line) || QUOTE.test(line) || isTable(lines, i) ||
    item !== null && item[0].length < line.length && (!/\d/.test(item[2]) || /^1[.)]/.test(item[2]))
}

function fenced(lines, i, opened) {
  let next = i + 1
  while (next < lines.length && !closesFence(lines[next], opened)) next++
  const text = lines.slice(i + 1, next).map(line => dedent(line, opened.indent) + "\n").join("")
  return {node: codeBlock(opened.language, text).element, next: next + 1}
}

// Columns of the white space that a line begins with. A tab is four.
function indentOf(line) {
  let columns = 0
  for (const c of line) {
    if (c !== " " && c !== "\t") break
    columns += c === "\t" ? 4 : 1
  }
  return columns
}

// A line without the first columns of its indent.
export function dedent(line, columns) {
  let at = 0
  for (let gone = 0; gone < columns && (line[at] === " " || line[at] === "\t"); at++) gone += line[at] === "\t" ? 4 : 1
  return line.slice(at)
}

function quote(lines, i, depth) {
  const inner = []
  let next = i
  for (; next < lines.length && QUOTE.test(lines[next]); next++) inner.push(lines[next].replace(QUOTE, ""))
  return {node: h("blockquote", {}, parse(inner, depth + 1)), next}
}

function list(lines, i, depth) {
  const first = ITEM.exec(lines[i]), kind = /\d/.test(first[2]), items = []
  let next = i
  while (next < lines.length) {
    const found = ITEM.exec(lines[next])
    if (!found || RULE.test(lines[next]) || /\d/.test(found[2]) !== kind) break
    const read = item(lines, next, found)
    items.push(read)
    next = read.next
  }
  const loose = items.some(({inner, blank}, k) => inner.includes("") || blank && k + 1 < items.length)
  const children = items.map(({inner}) => {
    const task = /^\[([ xX])\] /.exec(inner[0])
    if (task) inner[0] = (task[1] === " " ? "☐ " : "☑ ") + inner[0].slice(4)
    const nodes = parse(inner, depth + 1)
    return h("li", {dir: "auto"}, loose ? nodes : nodes.flatMap(tight))
  })
  const start = kind && Number.parseInt(first[2], 10) !== 1 ? {start: String(Number.parseInt(first[2], 10))} : {}
  return {node: h(kind ? "ol" : "ul", start, children), next}
}

const tight = node => node.nodeName === "P" ? [...node.childNodes] : [node]

// An item's lines without their indent. blank: blank lines follow it.
function item(lines, i, found) {
  const spaces = found[0].length - found[1].length - found[2].length
  const width = spaces > 4 ? found[0].length - spaces + 1 : found[0].length
  const least = Math.min(width, found[1].length + 2), inner = [lines[i].slice(width)]
  let next = i + 1, blank = false
  for (; next < lines.length; next++) {
    const line = lines[next], indent = indentOf(line)
    if (!line.trim()) { blank = true; inner.push(""); continue }
    if (indent < least && (ITEM.test(line) || blank || begins(lines, next))) break
    inner.push(dedent(line, width))
    blank = false
  }
  while (inner.length > 1 && inner.at(-1) === "") inner.pop()
  return {inner, next, blank}
}

const isTable = (lines, i) => lines[i].includes("|") && i + 1 < lines.length && DELIMITER.test(lines[i + 1]) &&
  cells(lines[i]).length === cells(lines[i + 1]).length

function cells(line) {
  const found = [""]
  const text = line.trim().replace(/^\|/, "")
  for (let i = 0; i < text.length; i++) {
    if (text[i] === "\\" && text[i + 1] === "|") { found[found.length - 1] += "|"; i++ }
    else if (text[i] !== "|") found[found.length - 1] += text[i]
    else if (i + 1 < text.length) found.push("")
  }
  return found.map(cell => cell.trim())
}

function table(lines, i) {
  const sides = cells(lines[i + 1]).map(mark => mark.endsWith(":") ? mark.startsWith(":") ? "center" : "end" : "start")
  const row = (line, tag) => {
    const texts = cells(line)
    return h("tr", {}, sides.map((side, k) => h(tag, {class: side, dir: "auto"}, inline(texts[k] ?? ""))))
  }
  let next = i + 2
  while (next < lines.length && lines[next].includes("|")) next++
  const body = h("tbody", {}, lines.slice(i + 2, next).map(line => row(line, "td")))
  const element = h("table", {}, h("thead", {}, row(lines[i], "th")), body)
  return {node: h("div", {class: "table", tabindex: "0", role: "group", "aria-label": "Table"}, element), next}
}
