// The conversation. One audio element plays every clip.

import { complain, drawBars, note, part, randomName, recall, root, unspelled } from "./common.js";

// The secret name of this tab's conversation, and its words: they outlive a reload, and a server that forgot them. While
// the tab is open no storage holds them, so that a duplicate of the tab does not take them, too.
const TAB = "moss-tab";
const SAID = "moss-said";
const claim = (name) => {
  const kept = recall(name, "sessionStorage");
  note(name, null, "sessionStorage");
  return kept;
};
export const tab = claim(TAB) ?? randomName();
let before = JSON.parse(claim(SAID) ?? "[]"); // what was said before this load of the page
window.addEventListener("pagehide", () => {
  note(TAB, tab, "sessionStorage");
  note(SAID, JSON.stringify(words()), "sessionStorage");
});
window.addEventListener("pageshow", () => [TAB, SAID].map(claim));

let element, list, mould, inSight; // since it was mounted
const $ = (selector) => element.querySelector(selector);
const FORGOTTEN = "The model no longer remembers what stands above.";
const EXPIRED = "The server no longer has this sound; ask again to hear it.";
const SAYS = { user: "You", assistant: "Answer", reading: "Read aloud" };
const sound = new Audio();
let shown = []; // the entries as JSON, in order
let told = []; // what the server still knows
let back = false; // the server has said what it knows of this tab
const runOf = (id) => id?.split(":")[0];
const cleared = new Set(); // runs of which a word may still be on its way
let playing = null; // the clip that is heard

function clock(seconds) {
  const whole = Math.max(1, Math.round(seconds));
  return `${Math.floor(whole / 60)}:${String(whole % 60).padStart(2, "0")}`;
}

// What is read aloud is one thing: the text, its sound, and what was said differently. Anything else is a talk of two.
const letters = (text) => text.toLowerCase().replace(/[^\p{L}\p{N}]+/gu, "");
function gather(entries) {
  const items = [];
  for (const entry of entries) {
    const asked = items.at(-1);
    if (entry.role === "forgotten") items.push(entry);
    else if (entry.role === "user") items.push({ ...entry, role: entry.reads ? "reading" : "user" });
    else if (!entry.reads || asked?.role !== "reading") items.push({ ...entry });
    else items[items.length - 1] = { ...asked, ...entry, role: "reading", text: asked.text, spoken: sameWords(asked.text, entry) ? "" : entry.text };
  }
  return items;
}

function sameWords(text, { text: spoken, note }) {
  const [typed, said] = [letters(text), letters(spoken)];
  return typed === said || (Boolean(note) && typed.startsWith(said)); // what was stopped is said as far as it came
}

function draw(entry) {
  if (entry.role === "forgotten") return part("li", "tr-forgotten", FORGOTTEN);
  const item = part("li", `tr-${entry.role}`, "");
  item.append(part("span", "tr-who heard-only", `${SAYS[entry.role]}:`));
  for (const [name, words] of [["tr-text", entry.role === "assistant" ? unspelled(entry.text) : entry.text], ["tr-spoken", entry.spoken && `spoken as “${unspelled(entry.spoken)}”`]]) {
    if (!words) continue;
    const text = part("p", name, words);
    text.dir = "auto";
    text.translate = name !== "tr-text";
    item.append(text);
  }
  if (entry.clip) item.append(clipOf(entry.clip));
  if (entry.note) item.append(part("p", "tr-note", entry.note));
  return item;
}

// Out of sight an entry is its words alone, and as high as it was: a long conversation weighs no more than a short one.
function sighted(changes) {
  for (const { target, isIntersecting } of changes) {
    if (!target.isConnected) inSight.unobserve(target);
    else if (isIntersecting) unfold(target);
    else fold(target);
  }
}

function fold(item) {
  const busy = item.contains(playing) || item.contains(document.activeElement);
  if (busy || !item.offsetHeight || !item.firstElementChild) return;
  item.style.minHeight = `${item.offsetHeight}px`;
  item.textContent = [...item.querySelectorAll(".tr-who, p")].map(({ textContent }) => textContent).join(" ");
  item.classList.add("tr-folded");
}

function unfold(item) {
  if (!item.classList.contains("tr-folded")) return;
  item.classList.remove("tr-folded");
  item.style.minHeight = "";
  item.replaceChildren(...draw(JSON.parse(shown[[...list.children].indexOf(item)])).childNodes);
}

function clipOf({ file, seconds, bars }) {
  const clip = mould.content.firstElementChild.cloneNode(true);
  const [svg, at] = [clip.querySelector(".clip-wave svg"), clip.querySelector(".clip-at")];
  svg.setAttribute("viewBox", `0 0 ${4 * bars.length} 100`);
  drawBars(svg.children, bars);
  clip.querySelector(".clip-save").href = file.url;
  clip.querySelector(".clip-time").textContent = clock(seconds);
  clip.querySelector(".clip-play").addEventListener("click", () => (playing === clip && !sound.paused ? sound.pause() : play()));
  at.addEventListener("input", () => {
    clip.style.setProperty("--at", at.value);
    if (playing === clip) sound.currentTime = at.value * seconds;
  });
  function play() {
    if (playing !== clip) {
      rest();
      playing = clip;
      sound.src = file.url;
      sound.currentTime = at.value < 1 ? at.value * seconds : 0;
    }
    window.liveAudio.pause();
    sound.play().catch(({ name }) => {
      rest();
      if (name === "NotSupportedError" && window.liveAudio.door.isOpen) complain(EXPIRED);
    });
  }
  return clip;
}

// The clip that was heard, back at its beginning.
function rest() {
  sound.pause();
  if (playing) follow(playing, 0);
  playing = null;
}

function follow(clip, at) {
  clip.style.setProperty("--at", at);
  clip.querySelector(".clip-at").value = at;
}

function paint() {
  for (const clip of list.querySelectorAll(".clip")) {
    const heard = clip === playing && !sound.paused;
    clip.classList.toggle("clip-on", heard);
    clip.querySelector(".clip-play").setAttribute("aria-label", heard ? "Pause" : "Play");
  }
}

// What the server knows no more stands before what it knows.
function joined() {
  const known = new Set(told.map(({ id }) => id));
  const forgotten = before.filter(({ id }) => !known.has(id));
  const isTalk = back && forgotten.some(({ reads }) => !reads);
  return [...forgotten, ...(isTalk ? [{ role: "forgotten" }] : []), ...told];
}

// Who is at its end sees what is added, to the newest entry, too.
const NEAR_PX = 24;
function show() {
  const entries = gather(joined());
  const wanted = entries.map((entry) => JSON.stringify(entry));
  const atEnd = element.scrollHeight - element.scrollTop - element.clientHeight < NEAR_PX;
  const longer = wanted.length > shown.length;
  wanted.forEach((text, i) => {
    if (text === shown[i]) return;
    const item = draw(entries[i]);
    if (playing && list.children[i]?.contains(playing)) rest();
    if (list.children[i]) list.children[i].replaceWith(item);
    else list.append(item);
    inSight.observe(item);
  });
  while (list.children.length > wanted.length) {
    if (list.lastElementChild.contains(playing)) rest();
    list.lastElementChild.remove();
  }
  shown = wanted;
  element.classList.toggle("tr-begun", wanted.length > 0);
  if (longer || atEnd) element.scrollTop = element.scrollHeight;
}

const words = () => joined().filter(({ id }) => id).map((entry) => ({ ...entry, clip: undefined }));

function take(entries) {
  for (const { clip } of entries) if (clip) clip.file.url = `${root()}/gradio_api/file=${clip.file.path}`;
  told = entries.filter(({ id }) => !cleared.has(runOf(id)));
  show();
}

document.addEventListener("conversation.updated", ({ detail }) => {
  if (detail.whole) before = words(); // of which a server that was started anew knows nothing
  back ||= detail.whole;
  take(detail.entries);
});

export function mountTranscript(place) {
  element = place;
  [list, mould] = [$(".tr-list"), $("template")];
  inSight = new IntersectionObserver(sighted, { root: element, rootMargin: "10% 0px" });
  for (const name of ["play", "pause"]) sound.addEventListener(name, paint);
  sound.addEventListener("timeupdate", () => playing && sound.duration && follow(playing, sound.currentTime / sound.duration));
  sound.addEventListener("ended", rest);
  // One voice at a time: a clip holds the reply, and a reply that begins or goes on ends the clip.
  document.addEventListener("liveaudio", ({ detail }) => detail.phase === "speaking" && !sound.paused && !window.liveAudio.player.silent && sound.pause());
  // Whoever clears the conversation clears it here, too.
  document.addEventListener("click", ({ target }) => {
    if (!target.closest?.("#clear")) return;
    for (const { id } of joined()) cleared.add(runOf(id));
    cleared.add(window.liveAudio.state.run);
    before = [];
    rest();
    take([]);
    window.liveAudio.clear();
  });
}
