// What the parts of the page share: what the browser keeps, texts, the server's address, and complaints.

// What the browser keeps for this page: "localStorage" for good, "sessionStorage" as long as the tab is open. Where it keeps
// nothing, as it was told to, everything is as on a first visit.
export function recall(name, where = "localStorage") {
  try {
    return window[where].getItem(name);
  } catch {
    return null;
  }
}

// null forgets it.
export function note(name, value, where = "localStorage") {
  try {
    if (value === null) window[where].removeItem(name);
    else window[where].setItem(name, value);
  } catch {
    // nobody is told of what nobody asked for
  }
}

// Writes a text where it is not the one that was written there before. What stands there may be its Chinese.
const written = new WeakMap(); // of every element
export function write(place, text) {
  if (written.get(place) === text) return;
  written.set(place, text);
  place.textContent = text;
}

export function part(tag, className, text = "") {
  const made = document.createElement(tag);
  made.className = className;
  made.textContent = text;
  return made;
}

// Phases of a reply that somebody waits for, or hears.
export const BUSY = ["sent", "waiting", "thinking", "speaking"];

export const root = () => (window.gradio_config?.root || "").replace(/\/$/, "");

export const randomName = () => Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");

// What went wrong, which the page shows in one place.
export function complain(sentence) {
  document.dispatchEvent(new CustomEvent("problem", { detail: sentence }));
}

// A link may break while the file comes.
export async function loadWorklet(context, url) {
  for (let attempt = 0; ; attempt++) {
    try {
      return await context.audioWorklet.addModule(attempt ? `${url}?${attempt}` : url);
    } catch {
      await new Promise((resolve) => setTimeout(resolve, 1000));
    }
  }
}

// Letters that are said one by one are written together: the M of "P M", behind the P.
const LETTER = /^\s*\p{Lu}$/u;
export function spelledOn(before, word) {
  return LETTER.test(before ?? "") && /^\s\p{Lu}(?!\p{L}|')/u.test(word) ? word.trimStart() : word;
}
export const unspelled = (text) => text.split(/(?=\s)/).map((word, i, words) => spelledOn(words[i - 1], word)).join("");

// Bars of 0 to 100, as the paths of an SVG whose width is 4 for each and whose height is 100.
export function drawBars(paths, bars) {
  const d = bars.map((height, i) => `M${4 * i} ${50 - Math.max(4, height) / 2}h2.4v${Math.max(4, height)}h-2.4z`).join("");
  for (const path of paths) path.setAttribute("d", d);
}
