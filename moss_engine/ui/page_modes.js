// The chosen mode: its two switches, its sentence, its examples, its words.

const notes = () => [...document.querySelectorAll("#mode-notes [data-mode]")];
const chosen = () => document.querySelector("#mode input:checked")?.value;

// What is said of settings: the chosen mode's own system turn, where another may be written, and which head the numbers
// are of. Closed settings are not there yet.
function showSettings() {
  for (const head of ["speech", "text"]) {
    byId(`${head}-sampling`)?.setAttribute("role", "group");
    byId(`${head}-sampling`)?.setAttribute("aria-labelledby", `${head}-head`);
  }
  const system = byId("system")?.querySelector("textarea");
  if (system) system.placeholder = notes().find((note) => note.dataset.mode === chosen()).dataset.system;
}

// The sentence and the examples of the chosen mode.
function showMode() {
  const mode = chosen();
  for (const part of document.querySelectorAll("#talk [data-mode]")) part.hidden = part.dataset.mode !== mode;
  const { dataset } = notes().find((note) => note.dataset.mode === mode);
  document.body.dataset.input = dataset.input;
  document.body.dataset.output = dataset.output;
  document.querySelector(".said-name").textContent = dataset.does === "read" ? "Reading list" : "Conversation";
  byId("send").textContent = dataset.verb;
  box().placeholder = dataset.wish;
  for (const fieldset of document.querySelectorAll(".switches fieldset:not([data-axis=does])")) fieldset.classList.toggle("away", dataset.does === "read");
  const hint = document.querySelector(".la-hint");
  if (hint && window.liveAudio?.state.run === null) hint.textContent = dataset.hint;
  for (const axis of dataset.does === "read" ? ["does"] : ["does", "input", "output"]) {
    const half = document.querySelector(`.switches input[name="${axis}"][value="${dataset[axis]}"]`);
    if (half) half.checked = true;
  }
  showSettings();
  document.dispatchEvent(new Event("modechange"));
}

function choose(mode) {
  document.querySelector(`#mode input[value="${CSS.escape(mode)}"]`).click();
  setTimeout(showMode); // a click before Gradio has settled is kept, but tells nobody
}

// Talking comes first where somebody answers and the browser has a microphone.
const mayTalk = () => window.isSecureContext && navigator.mediaDevices;
const first = (fits) => fits.find(({ dataset }) => mayTalk() && dataset.input === "speech" && dataset.output === "speech") ?? fits[0];

// The mode that fits all switches; where there is none, the first that fits the switch that was pressed.
function combine(pressed) {
  const wanted = [...document.querySelectorAll(".switches input:checked")].filter(({ name }) => pressed.value !== "read" || name === "does");
  const fits = notes().filter(({ dataset }) => dataset[pressed.name] === pressed.value && (pressed.name === "does" || dataset.does === "chat"));
  const all = fits.filter(({ dataset }) => wanted.every(({ name, value }) => dataset[name] === value));
  const { mode } = first(all.length ? all : fits).dataset;
  choose(mode);
  note("moss-mode", mode);
}

// A choice is remembered.
function firstMode() {
  if (!document.querySelector(".switches")) return;
  const kept = notes().find((note) => note.dataset.mode === recall("moss-mode"));
  const opens = document.querySelector(".switches").dataset.opens;
  const talk = opens === "talk" && mayTalk() && notes().find(({ dataset }) => dataset.input === "speech" && dataset.output === "speech");
  if (kept || talk) choose((kept ?? talk).dataset.mode);
}

document.addEventListener("change", ({ target }) => {
  if (target.closest?.("#mode")) showMode();
  else if (target.closest?.(".switches")) combine(target);
});
const settled = new MutationObserver(settle);
let isSettled = false;
function settle() {
  const parts = ["#examples .chips", "#mode-notes p", "#mode input:checked", "#text textarea", "#send", ".said-name"];
  if (isSettled || !window.liveAudio?.ready || window.first.composing || !parts.every((part) => document.querySelector(part))) return;
  isSettled = true;
  settled.disconnect();
  byId("mode").setAttribute("aria-label", "Mode");
  restoreDraft();
  showMode();
  firstMode();
  offerVoices();
  takeOver();
  new MutationObserver(() => (showSettings(), offerVoices())).observe(byId("talk"), { childList: true, subtree: true });
}
for (const name of ["liveready", "compositionend"]) document.addEventListener(name, () => setTimeout(settle));
settled.observe(document.body, { childList: true, subtree: true });
