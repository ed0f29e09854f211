// The page in English or Chinese. Whoever writes a text writes it in English; it is replaced by the table's as soon as it
// stands on the page. What visitors and models wrote is marked translate="no" and left alone. The table is a file: in its
// keys {#} stands for a figure and {} for any words, which are translated, too, if the table has them.

const LANGUAGES = { en: { code: "en", other: "中文" }, zh: { code: "zh-Hans", other: "English" } };
const SPOKEN_TO = ["aria-label", "aria-valuetext", "title", "placeholder"];
const FOREIGN = '[translate="no"], script, style';
const WORTH_A_LOOK = /\p{L}{2}/u; // figures and signs need no translation
const FIGURE = "([\\d.,:]+)";
const plain = new Map();
const shapes = []; // the most particular first
async function loadTable() {
  if (plain.size) return;
  for (const [english, chinese] of Object.entries(await window.first.chinese())) {
    if (/\{#?\}/.test(english)) shapes.push([shapeOf(english), chinese, english.length]);
    else plain.set(english, chinese);
  }
  shapes.sort(([, , one], [, , other]) => other - one);
}

function shapeOf(english) {
  const parts = english.split(/(\{#?\})/).map((part) => ({ "{}": "(.+?)", "{#}": FIGURE })[part] ?? part.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
  return new RegExp(`^${parts.join("")}$`, "s");
}

// null where the table has no such text.
function inChinese(text) {
  const core = text.trim().replace(/\s+/g, " ");
  if (!WORTH_A_LOOK.test(core)) return null;
  const whole = plain.get(core) ?? shaped(core) ?? oneByOne(core);
  return whole && text.replace(/\S[^]*\S|\S/, () => whole);
}

// Several sentences, each of which the table has.
function oneByOne(core) {
  const sentences = core.split(/(?<=[.!?]) (?=\p{Lu})/u);
  const known = sentences.length > 1 ? sentences.map((one) => plain.get(one) ?? shaped(one)) : [null];
  return known.every(Boolean) ? known.join("") : null;
}

function shaped(core) {
  for (const [shape, chinese] of shapes) {
    const found = shape.exec(core);
    if (!found) continue;
    const words = found.slice(1).map((word) => inChinese(word) ?? word);
    return chinese.replace(/\{([#\d]?)\}/g, (_, place) => (Number(place) ? words[place - 1] : words.shift()));
  }
  return null;
}

const originals = new WeakMap(); // of every text that was replaced: {english, shown}, by attribute for elements

// Replace one text, given how it is read and written, unless it is ours already.
function replace(known, name, read, write) {
  const now = read();
  if (!now || known[name]?.shown === now) return;
  const shown = inChinese(now);
  if (shown) known[name] = { english: now, shown };
  else delete known[name];
  if (shown) write(shown);
}

function knownOf(node) {
  if (!originals.has(node)) originals.set(node, {});
  return originals.get(node);
}

function turn(node) {
  if (node.nodeType === Node.TEXT_NODE) {
    if (node.parentElement?.closest(FOREIGN)) return;
    replace(knownOf(node), "text", () => node.data, (text) => (node.data = text));
  } else if (node.nodeType === Node.ELEMENT_NODE) {
    if (!node.matches(FOREIGN)) for (const name of SPOKEN_TO) turnAttribute(node, name);
    for (const child of node.childNodes) turn(child);
  }
}

function turnAttribute(node, name) {
  if (node.hasAttribute(name)) replace(knownOf(node), name, () => node.getAttribute(name), (text) => node.setAttribute(name, text));
}

function turnBack(node) {
  const known = originals.get(node) ?? {};
  for (const [name, { english, shown }] of Object.entries(known)) {
    if (name === "text" && node.data === shown) node.data = english;
    else if (name !== "text" && node.getAttribute(name) === shown) node.setAttribute(name, english);
  }
  originals.delete(node);
  for (const child of node.childNodes) turnBack(child);
}

const changes = new MutationObserver((records) => {
  for (const { type, target, addedNodes, attributeName } of records) {
    if (type === "attributes") turnAttribute(target, attributeName);
    else if (type === "characterData") turn(target);
    else for (const node of addedNodes) turn(node);
  }
});

async function speakTo(language) {
  if (language === "zh") await loadTable();
  const chosenOne = LANGUAGES[language];
  document.documentElement.lang = chosenOne.code;
  document.body.dataset.language = language;
  const other = element.querySelector(".tongue");
  other.textContent = chosenOne.other;
  other.lang = language === "zh" ? "en" : "zh-Hans";
  if (language === "zh") {
    turn(document.body);
    changes.observe(document.body, { subtree: true, childList: true, characterData: true, attributes: true, attributeFilter: SPOKEN_TO });
  } else {
    changes.disconnect();
    turnBack(document.body);
  }
}

const preferred = navigator.languages.find((name) => /^(en|zh)\b/i.test(name)) ?? "en";
speakTo(recall("moss-language") ?? preferred.slice(0, 2).toLowerCase());
element.querySelector(".tongue").addEventListener("click", () => {
  const language = document.body.dataset.language === "zh" ? "en" : "zh";
  note("moss-language", language);
  speakTo(language);
});
