// The one place for what went wrong: under the box, kept until the next edit or the next accepted question.

const problem = () => byId("problem").querySelector("p");
const limit = Number(element.querySelector("[data-limit]").dataset.limit); // characters of a question
let complained = -Infinity;

function show(sentence) {
  write(problem(), sentence);
  if (sentence) complained = performance.now();
}
document.addEventListener("problem", ({ detail }) => show(detail));
// It stays beside questions that were not asked, as it says why.
document.addEventListener("input", ({ target }) => {
  if (!target.closest?.("#composer, #settings") || byId("problem").querySelector(".unasked .chip")) return;
  show("");
});

// Whether a question could be accepted, as far as the page knows; says what is to be changed. Nothing to say is no
// mistake.
function mayAsk(text) {
  if (!text.trim()) {
    box().focus();
    return false;
  }
  const characters = [...text].length;
  if (characters > limit) {
    show(`The text has ${characters.toLocaleString("en")} characters, the limit is ${limit.toLocaleString("en")}; send it in parts.`);
    return false;
  }
  const wrong = [...document.querySelectorAll("#settings input[type=number]")].find((input) => !within(input));
  if (!wrong) return true;
  const name = (wrong.getAttribute("aria-label") ?? "A number").replace("number input for ", "");
  show(`${name} is ${wrong.value || "empty"}; give a number from ${wrong.min} to ${wrong.max} in the settings.`);
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
  const characters = [...target.value].length;
  const counter = document.querySelector(".counter");
  counter.hidden = characters < limit * WORTH;
  counter.classList.toggle("over", characters > limit);
  counter.textContent = `${characters.toLocaleString("en")} of ${limit.toLocaleString("en")} characters`;
});

const TOAST = "[data-testid=toast-text]";
// Gradio says some things in toasts over the page and some inside the label of the box; they are said here instead.
const SOON_MS = 2000; // the page's own sentence about the same thing is the better one
new MutationObserver(() => {
  for (const told of document.querySelectorAll(`${TOAST}:not([data-told]), #text div.validation-error:not([data-told])`)) {
    told.dataset.told = "";
    const sentence = told.textContent.trim();
    if (!problem().textContent || performance.now() - complained > SOON_MS) show(sentence);
  }
}).observe(document.body, { childList: true, subtree: true });
