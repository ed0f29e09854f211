// Keys, drafts, examples and the shade: what belongs to no single component.

const byId = (id) => document.getElementById(id);
const box = () => byId("text").querySelector("textarea");
const shade = element.querySelector(".shade");
const about = element.querySelector(".about");

function paintShade(dark) {
  document.body.classList.toggle("dark", dark);
  shade.setAttribute("aria-pressed", dark);
}

const stored = recall("moss-shade");
if (stored) paintShade(stored === "dark");
shade.setAttribute("aria-pressed", document.body.classList.contains("dark"));
shade.addEventListener("click", () => {
  const dark = !document.body.classList.contains("dark");
  note("moss-shade", dark ? "dark" : "light");
  paintShade(dark);
});

// To listen, or to look at the engine: the last choice, unless the address says which.
const views = [...element.querySelectorAll(".views button")];
function look(name) {
  document.body.dataset.view = name;
  for (const button of views) button.setAttribute("aria-pressed", button.dataset.view === name);
}
for (const button of views) {
  button.addEventListener("click", () => {
    note("moss-view", button.dataset.view);
    look(button.dataset.view);
  });
}
const asked = (name) => views.some(({ dataset }) => dataset.view === name) && name;
look(asked(location.hash.slice(1)) || asked(recall("moss-view")) || "listen");
window.addEventListener("hashchange", () => asked(location.hash.slice(1)) && look(location.hash.slice(1)));

document.addEventListener("keydown", (event) => {
  if (event.isComposing || document.querySelector("dialog[open]")) return;
  if (event.key !== "Escape") return;
  byId("stop")?.click();
  if (document.body.dataset.input === "text") box()?.focus();
});

// What was typed and not sent outlives the page, which is loaded anew when another program answers.
window.addEventListener("pagehide", () => note("moss-draft", box().value, "sessionStorage"));
function type(text) {
  box().value = text;
  box().dispatchEvent(new Event("input", { bubbles: true }));
}
function restoreDraft() {
  type(box().value || (recall("moss-draft", "sessionStorage") ?? ""));
}

// The question is taken out of the box at the press, so that whatever is typed from then on is the next one.
// Two presses at once are one, so that a double click asks once, as are two before the question was accepted. A press that would be refused changes nothing.
const TWICE_MS = 500;
let sent = { text: "", at: -Infinity };
const twice = () => performance.now() - sent.at < TWICE_MS;
let example = null; // of a chip: {text, own, ms}, with the controls that are its own, and when it was pressed
function press(event) {
  const value = example?.text ?? box().value;
  const repeated = (twice() || window.liveAudio.asking) && (!value.trim() || value === sent.text);
  if (repeated || !mayAsk(value)) {
    event.stopImmediatePropagation();
    event.preventDefault();
    return;
  }
  sent = { text: value, at: performance.now(), pointer: event.detail > 0 };
  window.liveAudio.expect(value, example?.ms ?? event.timeStamp, example?.own);
  if (!example) type("");
}
document.addEventListener("click", (event) => event.target.closest?.("#send") && press(event), true);
document.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing || !event.target.closest?.("#text")) return;
  if ((event.ctrlKey || event.metaKey) && window.liveAudio.busy) askNext(event);
  else press(event);
}, true);

// Enter cuts in; with Ctrl a question waits until the reply was heard. Where that is stopped, it is offered again.
const next = []; // {text, mode}
function askNext(event) {
  event.stopImmediatePropagation();
  event.preventDefault();
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
  document.body.toggleAttribute("data-busy", window.liveAudio.busy);
  if (next.length === 0 || window.liveAudio.busy) return;
  if (detail.phase === "done") {
    const { text, mode } = next.shift();
    askAtOnce(text, { mode });
  } else if (["stopped", "failed", "lost"].includes(detail.phase)) {
    for (const { text } of next.splice(0)) document.dispatchEvent(new CustomEvent("unasked", { detail: { question: text, replaced: true } }));
  }
  showNext();
});
// Stop stands where the press was: the second press of a double click does not mean it.
document.addEventListener("click", (event) => {
  if (event.detail > 0 && sent.pointer && twice() && event.target.closest?.("#stop")) event.stopImmediatePropagation();
}, true);

// A question that was not asked after all comes back into an empty box, and is offered beside a filled one.
document.addEventListener("unasked", ({ detail: { question, replaced } }) => {
  if (!replaced && !box().value.trim()) {
    const why = problem().textContent; // which an edit would take away
    type(question);
    return show(why);
  }
  const offer = document.createElement("button");
  offer.className = "chip";
  offer.textContent = question;
  offer.addEventListener("click", () => offer.remove());
  byId("problem").querySelector(".unasked").append(offer);
});

// An example is asked at once, and leaves the box and the mode as they are: where one talks, its answer is spoken, too.
function askAtOnce(text, own, ms) {
  example = { text, own, ms };
  byId("send").click();
  example = null;
}
function typedMode() {
  const { dataset } = notes().find((note) => note.dataset.mode === chosen());
  if (dataset.input === "text") return dataset.mode;
  return (notes().find((note) => note.dataset.input === "text" && note.dataset.output === "speech" && note.dataset.does === dataset.does) ?? notes().find((note) => note.dataset.input === "text")).dataset.mode;
}
// What was typed and asked before the page was there. What cannot be asked comes into the box.
function takeOver() {
  const { asked, text, at } = window.first.leave();
  if (text) {
    if (document.body.dataset.input !== "text") choose(typedMode());
    type(text);
  }
  if (at) {
    box().focus();
    box().setSelectionRange(...at);
  }
  for (const { question, ms } of asked) {
    if (mayAsk(question)) askAtOnce(question, { mode: typedMode() }, ms);
    else document.dispatchEvent(new CustomEvent("unasked", { detail: { question } }));
  }
}
document.addEventListener("click", ({ target }) => {
  const chip = target.closest?.(".chip, .la-example");
  if (chip) askAtOnce(chip.dataset[document.body.dataset.language] ?? chip.textContent, { mode: typedMode() });
});

// A question that was read aloud is to be answered.
document.addEventListener("answer", ({ detail }) => {
  choose(detail.mode);
  askAtOnce(detail.text, { mode: detail.mode });
});

// Each voice can be heard where a text is read as it stands.
const READS = '#mode-notes [data-does="read"]';
const HELLO = "Hello! This is how I sound.";
function offerVoices() {
  const reads = document.querySelector(READS);
  for (const name of document.querySelectorAll("#voice label span")) name.translate = name.textContent.trim() === "Your voice";
  for (const label of document.querySelectorAll("#voice label:not(:has(.voice-hear))")) {
    if (!reads) return;
    const hear = document.createElement("button");
    const { value } = label.querySelector("input");
    Object.assign(hear, { type: "button", className: "voice-hear" });
    hear.setAttribute("aria-label", "Hear this voice");
    hear.addEventListener("click", (event) => {
      event.preventDefault();
      askAtOnce(HELLO, { mode: reads.dataset.mode, voice: value });
    });
    label.append(hear);
  }
}

// What this page is, for those who ask.
element.querySelector(".about-open").addEventListener("click", () => about.showModal());
about.addEventListener("click", (event) => event.target === about && about.close());
