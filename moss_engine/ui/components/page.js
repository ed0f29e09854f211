// The page: keys, drafts, examples, the shade, and what else belongs to no single component.

import { note, part, recall, write } from "./common.js";
import { mountLive } from "./live_audio.js";
import { mountRecorder } from "./recorder.js";
import { mountTranscript } from "./transcript.js";

let tongue, views; // since it began
let told; // what the server says of itself
const byId = (id) => document.getElementById(id);
const box = () => byId("text").querySelector("textarea");

// What is not needed at once.
const later = (name, ...given) => import(new URL(`./${name}.js`, import.meta.url)).then(({ mount }) => mount(byId(name.replace("_", "-")), ...given));
let panel = null;

// To listen, or to look at the engine: the last choice, unless the address says which.
function look(name) {
  document.body.dataset.view = name;
  if (name === "engine") panel ??= later("panel", told);
  window.dispatchEvent(new Event(name));
  for (const button of views) button.setAttribute("aria-pressed", button.dataset.view === name);
}
const asked = (name) => views.some(({ dataset }) => dataset.view === name) && name;
window.addEventListener("hashchange", () => asked(location.hash.slice(1)) && look(location.hash.slice(1)));

document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || event.isComposing || document.querySelector("dialog[open], :popover-open")) return;
  byId("stop").click();
});

// What was typed and not sent outlives the page, which is loaded anew when another program answers.
window.addEventListener("pagehide", () => {
  const offered = [...byId("problem").querySelectorAll(".unasked .chip")].map(({ textContent }) => textContent);
  const unsent = [...offered, ...next.map(({ text }) => text), box().value];
  note("moss-draft", unsent.filter(Boolean).join("\n"), "sessionStorage");
});
function type(text) {
  box().value = text;
  box().dispatchEvent(new Event("input", { bubbles: true }));
}

// The question is taken out of the box at the press, so that whatever is typed from then on is the next one.
// Two presses at once are one, so that a double click asks once, as are two before the question was accepted. A press that would be refused changes nothing.
const TWICE_MS = 500;
let sent = { text: "", at: -Infinity };
const twice = () => performance.now() - sent.at < TWICE_MS;
function allows(text) {
  const repeated = (twice() || window.liveAudio.asking) && (!text.trim() || text === sent.text);
  return !repeated && mayAsk(text);
}
function ask(text, { ms, own, pointer = false }) {
  sent = { text, at: performance.now(), pointer };
  window.liveAudio.askTyped(text, ms, own);
}
const askOnce = (text, how) => allows(text) && ask(text, how);
function press(event) {
  const text = box().value;
  if (!allows(text)) return;
  type("");
  ask(text, { ms: event.timeStamp, pointer: event.detail > 0 });
  stay(event);
}
// Of Send and Stop one takes the other's place; whoever pressed it by a key is in the box, as keys are nowhere otherwise.
const stay = ({ detail }) => detail === 0 && document.body.dataset.input === "text" && box().focus();
document.addEventListener("click", (event) => event.target.closest?.("#send") && press(event));
// Enter that is held down is one press, of buttons, too.
document.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  const typed = event.target.closest?.("#text");
  if (typed || (event.repeat && event.target.closest?.("button"))) event.preventDefault();
  if (!typed || event.repeat) return;
  if ((event.ctrlKey || event.metaKey) && window.liveAudio.busy) askNext();
  else press(event);
}, true);

// Enter cuts in; with Ctrl a question waits until the reply was heard. Where that is stopped, it is offered again.
const next = []; // {text, mode}
function askNext() {
  const text = box().value;
  if (!mayAsk(text)) return;
  next.push({ text, mode: typedMode() });
  type("");
  showNext();
}
function showNext() {
  const line = document.querySelector(".next-asked");
  line.hidden = next.length === 0;
  line.querySelector("span").textContent = next.map(({ text }) => text).join(" · ");
}
document.addEventListener("liveaudio", ({ detail }) => {
  if (next.length === 0 || window.liveAudio.busy) return;
  if (detail.phase === "done") {
    const { text, mode } = next.shift();
    askOnce(text, { own: { mode } });
  } else if (["stopped", "failed", "lost"].includes(detail.phase)) {
    for (const { text } of next.splice(0)) document.dispatchEvent(new CustomEvent("unasked", { detail: { question: text, replaced: true } }));
  }
  showNext();
});
// Stop stands where the press was: the second press of a double click does not mean it.
document.addEventListener("click", (event) => {
  if (!event.target.closest?.("#stop")) return;
  if (event.detail > 0 && sent.pointer && twice()) return event.stopImmediatePropagation();
  window.liveAudio.stop();
  stay(event);
}, true);

// A question that was not asked after all comes back into an empty box, and is offered beside a filled one.
document.addEventListener("unasked", ({ detail: { question, replaced } }) => {
  if (!replaced && !box().value.trim()) {
    const why = problem().textContent; // which an edit would take away
    type(question);
    return show(why);
  }
  const offer = part("button", "chip", question);
  offer.addEventListener("click", () => offer.remove());
  byId("problem").querySelector(".unasked").append(offer);
});

// Who clears all is offered none of them, and asks nothing next.
document.addEventListener("click", ({ target }) => {
  if (!target.closest?.("#clear")) return;
  next.length = 0;
  showNext();
  byId("problem").querySelector(".unasked").replaceChildren();
});

// An example is asked at once, and leaves the box and the mode as they are: where one talks, its answer is spoken, too.
function typedMode() {
  const { dataset } = notes().find((note) => note.dataset.mode === chosen());
  if (dataset.input === "text") return dataset.mode;
  return (notes().find((note) => note.dataset.input === "text" && note.dataset.output === "speech" && note.dataset.does === dataset.does) ?? notes().find((note) => note.dataset.input === "text")).dataset.mode;
}
// What was asked before the page's scripts were there. What cannot be asked comes into the box.
function askFirst() {
  for (const { question, ms } of window.first.asked) {
    if (mayAsk(question)) askOnce(question, { own: { mode: typedMode() }, ms });
    else document.dispatchEvent(new CustomEvent("unasked", { detail: { question } }));
  }
  showNext();
}
document.addEventListener("click", ({ target }) => {
  const chip = target.closest?.(".chip, .la-example");
  if (chip) askOnce(chip.dataset[document.body.dataset.language] ?? chip.textContent, { own: { mode: typedMode() } });
});

// Each voice can be heard where a text is read as it stands.
const HELLO = "Hello! This is how I sound.";
document.addEventListener("click", (event) => {
  const hear = event.target.closest?.(".voice-hear");
  if (!hear) return;
  event.preventDefault(); // which would choose the voice
  const { mode } = document.querySelector('#mode-notes [data-does="read"]').dataset;
  askOnce(HELLO, { own: { mode, voice: hear.parentElement.querySelector("input").value } });
});

// A number and its slider are one; who keeps the seed keeps that of the reply.
document.addEventListener("input", ({ target }) => {
  for (const other of target.closest?.(".control")?.querySelectorAll("input") ?? []) if (other !== target) other.value = target.value;
});
document.addEventListener("change", ({ target }) => {
  const { seed } = window.liveAudio.state;
  if (target.closest?.("#new-seed") && !target.checked && seed !== null) byId("seed").querySelector("input").value = seed;
});

// The one place for what went wrong: under the box, kept until the next edit or the next accepted question.

const problem = () => byId("problem").querySelector("p");
const show = (sentence) => write(problem(), sentence);
document.addEventListener("problem", ({ detail }) => show(detail));
// It stays beside questions that were not asked, as it says why.
document.addEventListener("input", ({ target }) => {
  if (!target.closest?.("#composer, #settings") || byId("problem").querySelector(".unasked .chip")) return;
  show("");
});

// Whether a question could be accepted, as far as the page knows; says what is to be changed. Nothing to say is no
// mistake: only who does not see the empty box is told.
function mayAsk(text) {
  if (!text.trim()) {
    box().focus();
    byId("hint").textContent = "There is nothing to say; type a sentence.";
    return false;
  }
  const characters = [...text].length;
  if (characters > told.limit) {
    show(`The text has ${characters.toLocaleString("en")} characters, the limit is ${told.limit.toLocaleString("en")}; send it in parts.`);
    return false;
  }
  const wrong = [...document.querySelectorAll("#talk input[type=number]")].find((input) => !within(input));
  if (!wrong) return true;
  const where = wrong.closest("#settings") ? " in the settings" : "";
  show(`${wrong.labels[0].textContent} is ${wrong.value || "empty"}; give a number from ${wrong.min} to ${wrong.max}${where}.`);
  return false;
}

function within({ value, min, max, step }) {
  const number = Number(value);
  const whole = step !== "1" || Number.isInteger(number);
  return value.trim() !== "" && whole && number >= Number(min) && number <= Number(max);
}

// How long the text is, once it is worth a look.
const WORTH = 0.5;
document.addEventListener("input", ({ target }) => {
  if (!target.closest?.("#text")) return;
  byId("hint").textContent = "";
  target.style.height = "auto"; // as high as its lines
  target.style.height = `${target.scrollHeight}px`;
  const characters = [...target.value].length;
  const counter = document.querySelector(".counter");
  counter.hidden = characters < told.limit * WORTH;
  counter.classList.toggle("over", characters > told.limit);
  counter.textContent = `${characters.toLocaleString("en")} of ${told.limit.toLocaleString("en")} characters`;
});

// The chosen mode: its sentence, its examples, its words.

const notes = () => [...document.querySelectorAll("#mode-notes [data-mode]")];
const chosen = () => document.querySelector("#mode input:checked")?.value;

// The sentence and the examples of the chosen mode.
function showMode() {
  const mode = chosen();
  for (const part of document.querySelectorAll("#talk [data-mode]")) part.hidden = part.dataset.mode !== mode;
  const { dataset } = notes().find((note) => note.dataset.mode === mode);
  document.body.dataset.input = dataset.input;
  document.body.dataset.output = dataset.output;
  document.querySelector("#said-name").textContent = dataset.does === "read" ? "Reading list" : "Conversation";
  byId("send").textContent = dataset.verb;
  box().placeholder = dataset.wish;
  if (window.liveAudio.state.run === null) document.querySelector(".la-hint").textContent = dataset.hint;
  const system = byId("system")?.querySelector("textarea");
  if (system) system.placeholder = dataset.system;
  document.dispatchEvent(new Event("modechange"));
}

// A choice is remembered; else talking comes first where somebody answers and the browser has a microphone.
function firstMode() {
  const kept = notes().find((note) => note.dataset.mode === recall("moss-mode"));
  const talk = told.talks && window.isSecureContext && navigator.mediaDevices && notes().find(({ dataset }) => dataset.input === "speech" && dataset.output === "speech");
  if (kept || talk) document.querySelector(`#mode input[value="${CSS.escape((kept ?? talk).dataset.mode)}"]`).checked = true;
  showMode();
}

document.addEventListener("change", ({ target }) => {
  if (!target.closest?.("#mode")) return;
  showMode();
  note("moss-mode", chosen());
});

// The panel for programs: snippets with this page's own address, copied by one click. Without a secure context there is no clipboard to write to, only the one of what is marked.
async function copied(code) {
  if (navigator.clipboard) return navigator.clipboard.writeText(code.textContent).then(() => true, () => false);
  getSelection().selectAllChildren(code);
  return document.execCommand("copy");
}

document.addEventListener("click", ({ target }) => target.closest?.(".programs-open") && document.querySelector(".programs").showModal());

// Whoever writes a text writes it in English; it is replaced by the table's as soon as it
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
  for (const [english, chinese] of Object.entries(await (await fetch(told.chinese)).json())) {
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

// Gradio names the browser's language, whenever its scripts are there.
function nameLanguage() {
  const { code } = LANGUAGES[document.body.dataset.language];
  if (document.documentElement.lang !== code) document.documentElement.lang = code;
}

async function speakTo(language) {
  if (language === "zh") await loadTable();
  const chosenOne = LANGUAGES[language];
  document.body.dataset.language = language;
  nameLanguage();
  tongue.textContent = chosenOne.other;
  tongue.lang = language === "zh" ? "en" : "zh-Hans";
  if (language === "zh") {
    turn(document.body);
    changes.observe(document.body, { subtree: true, childList: true, characterData: true, attributes: true, attributeFilter: SPOKEN_TO });
  } else {
    changes.disconnect();
    turnBack(document.body);
  }
}

function mountLanguage() {
  document.body.dataset.language = "en";
  new MutationObserver(nameLanguage).observe(document.documentElement, { attributeFilter: ["lang"] });
  const preferred = navigator.languages.find((name) => /^(en|zh)\b/i.test(name)) ?? "en";
  speakTo(recall("moss-language") ?? preferred.slice(0, 2).toLowerCase());
  tongue.addEventListener("click", () => {
    const language = document.body.dataset.language === "zh" ? "en" : "zh";
    note("moss-language", language);
    speakTo(language);
  });
}

export function begin() {
  told = JSON.parse(byId("told").textContent);
  const element = byId("page");
  const shade = element.querySelector(".shade");
  tongue = element.querySelector(".tongue");
  const about = element.querySelector(".about");
  const programs = element.querySelector(".programs");
  mountLanguage();
  shade.setAttribute("aria-pressed", document.body.classList.contains("dark"));
  shade.addEventListener("click", () => {
    const dark = document.body.classList.toggle("dark");
    shade.setAttribute("aria-pressed", dark);
    note("moss-shade", dark ? "dark" : "light");
  });
  views = [...element.querySelectorAll(".views button")];
  for (const button of views) {
    button.addEventListener("click", () => {
      note("moss-view", button.dataset.view);
      if (asked(location.hash.slice(1))) history.replaceState(null, "", `#${button.dataset.view}`); // which decides at the next load
      look(button.dataset.view);
    });
  }
  // What this page is, for those who ask.
  element.querySelector(".about-open").addEventListener("click", () => about.showModal());
  about.addEventListener("click", (event) => event.target === about && about.close());
  for (const code of programs?.querySelectorAll("code.way") ?? []) {
    code.textContent = code.textContent.replaceAll("@address@", new URL(".", location).href.slice(0, -1));
  }
  programs?.addEventListener("click", async ({ target }) => {
    if (target === programs) programs.close();
    const copy = target.closest(".way-copy");
    if (!copy) return;
    copy.textContent = (await copied(copy.parentElement.nextElementSibling.firstChild)) ? "Copied" : "Mark it and copy by hand";
  });
  mountTranscript(byId("chat"));
  mountLive(byId("live"), told);
  if (byId("recorder")) mountRecorder(byId("recorder"), told);
  if (byId("voice-sample")) later("voice_sample");
  type(box().value || (recall("moss-draft", "sessionStorage") ?? ""));
  firstMode();
  look(asked(location.hash.slice(1)) || asked(recall("moss-view")) || "listen");
  askFirst();
}
