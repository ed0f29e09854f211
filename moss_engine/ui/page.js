// Keys, examples, the mode's sentence and the shade: what belongs to no single component.

const byId = (id) => document.getElementById(id);
const shade = element.querySelector(".shade");

function paintShade(dark) {
  document.body.classList.toggle("dark", dark);
  shade.setAttribute("aria-pressed", dark);
}

const stored = localStorage.getItem("moss-shade");
if (stored) paintShade(stored === "dark");
shade.setAttribute("aria-pressed", document.body.classList.contains("dark"));
shade.addEventListener("click", () => {
  const dark = !document.body.classList.contains("dark");
  localStorage.setItem("moss-shade", dark ? "dark" : "light");
  paintShade(dark);
});

document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  byId("stop")?.click();
  if (document.body.dataset.input === "text") byId("text")?.querySelector("textarea")?.focus();
});

// What was typed and not sent outlives the page, which Gradio loads anew after a lost connection.
window.addEventListener("pagehide", () => sessionStorage.setItem("moss-draft", byId("text").querySelector("textarea").value));
function restoreDraft() {
  const box = byId("text").querySelector("textarea");
  box.value ||= sessionStorage.getItem("moss-draft") ?? "";
  box.dispatchEvent(new Event("input", { bubbles: true }));
}

// Two presses at once are one, so that a double click asks once.
const TWICE_MS = 500;
let sent = { text: "", at: -Infinity };
function press(event) {
  const { value } = byId("text").querySelector("textarea");
  if (performance.now() - sent.at < TWICE_MS && (!value.trim() || value === sent.text)) {
    event.stopImmediatePropagation();
    event.preventDefault();
    return;
  }
  sent = { text: value, at: performance.now() };
  window.liveAudio.expect();
}
document.addEventListener("click", (event) => event.target.closest?.("#send") && press(event), true);
document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing && event.target.closest?.("#text")) press(event);
}, true);

// An example goes into the text box and is spoken at once.
document.addEventListener("click", ({ target }) => {
  const chip = target.closest?.(".chip");
  if (!chip) return;
  const box = byId("text").querySelector("textarea");
  box.value = chip.textContent;
  box.dispatchEvent(new Event("input", { bubbles: true }));
  setTimeout(() => byId("send").click(), 0);
});

// What is said of settings: the chosen mode's own system turn, where another may be written, and which head the numbers
// are of. Closed settings are not there yet.
function showSettings() {
  for (const head of ["speech", "text"]) {
    byId(`${head}-sampling`)?.setAttribute("role", "group");
    byId(`${head}-sampling`)?.setAttribute("aria-labelledby", `${head}-head`);
  }
  const system = byId("system")?.querySelector("textarea");
  if (system) system.placeholder = document.querySelector("#mode-notes p[data-mode]:not([hidden])").dataset.system;
}

// The sentence and the examples of the chosen mode.
function showMode() {
  const chosen = document.querySelector("#mode input:checked")?.value;
  for (const part of document.querySelectorAll("#talk [data-mode]")) part.hidden = part.dataset.mode !== chosen;
  const note = document.querySelector(`#mode-notes [data-mode="${CSS.escape(chosen)}"]`);
  document.body.dataset.input = note.dataset.input;
  byId("send").textContent = note.dataset.verb;
  byId("text").querySelector("textarea").placeholder = note.dataset.wish;
  showSettings();
  document.dispatchEvent(new Event("modechange"));
}
document.addEventListener("change", ({ target }) => target.closest?.("#mode") && showMode());
const settled = new MutationObserver(() => {
  const parts = ["#examples .chips", "#mode-notes p", "#mode input:checked", "#text textarea", "#send"];
  if (!parts.every((part) => document.querySelector(part))) return;
  settled.disconnect();
  byId("mode").setAttribute("aria-label", "Mode");
  restoreDraft();
  showMode();
  new MutationObserver(showSettings).observe(byId("talk"), { childList: true, subtree: true });
});
settled.observe(document.body, { childList: true, subtree: true });
