// The conversation. One audio element plays every clip.

import { note, part, randomName, recall, root, unspelled } from "./common.js";

// The conversation of this tab in the browser's own storage, with its sound: it outlives a reload and a lost server. Kept
// for a day, and deleted by "Clear all".

const KEPT_MS = 24 * 3600_000;
const MOST_SOUND_BYTES = 64 * 2 ** 20; // of one tab; the oldest go first
const TAB = "moss-tab";

// The secret name of this tab's conversation. While the tab is open no storage holds it, so that a duplicate of the tab
// does not take it, too.
function claimTab() {
  const kept = recall(TAB, "sessionStorage");
  note(TAB, null, "sessionStorage");
  if (kept) return kept;
  return randomName();
}

const done = (request) => new Promise((resolve, reject) => {
  request.onsuccess = () => resolve(request.result);
  request.onerror = () => reject(request.error);
});

class Store {
  constructor() {
    this.tab = claimTab();
    this.written = new Map(); // id -> the entry as JSON, as it is kept
    this.bytes = new Map(); // id -> of its sound, the oldest first
    this.opened = this.open();
    window.addEventListener("pagehide", () => note(TAB, this.tab, "sessionStorage"));
    window.addEventListener("pageshow", () => note(TAB, null, "sessionStorage"));
  }

  async open() {
    const request = indexedDB.open("moss-speech", 1);
    request.onupgradeneeded = () => request.result.createObjectStore("turns", { keyPath: ["tab", "id"] });
    this.database = await done(request);
  }

  turns(mode) {
    return this.database.transaction("turns", mode).objectStore("turns");
  }

  // Everything of this tab, the oldest first: [{id, at, entry, sound}]. What other tabs left long ago goes.
  async read() {
    await this.opened;
    const all = await done(this.turns("readonly").getAll());
    const [now, mine] = [Date.now(), all.filter(({ tab }) => tab === this.tab).sort((a, b) => a.at - b.at)];
    const old = all.filter(({ tab, at }) => tab !== this.tab && now - at > KEPT_MS);
    for (const { tab, id } of old) this.turns("readwrite").delete([tab, id]);
    for (const { id, entry, sound } of mine) {
      this.written.set(id, JSON.stringify(entry));
      this.bytes.set(id, sound?.byteLength ?? 0);
    }
    return mine;
  }

  // Keep an entry; `fetchSound` brings its WAV as an ArrayBuffer. Resolves to the record, or null where it is kept already.
  async keep(entry, fetchSound) {
    const text = JSON.stringify(entry);
    if (this.written.get(entry.id) === text) return null;
    this.written.set(entry.id, text);
    await this.opened;
    const before = await done(this.turns("readonly").get([this.tab, entry.id]));
    const same = before?.entry.clip?.file.path === entry.clip?.file.path;
    const sound = !entry.clip ? null : same && before?.sound ? before.sound : await fetchSound();
    if (this.written.get(entry.id) !== text) return null; // cleared, or newer by now
    const record = { tab: this.tab, id: entry.id, at: before?.at ?? this.stamp(), entry, sound };
    await done(this.turns("readwrite").put(record));
    this.bytes.set(entry.id, sound?.byteLength ?? 0);
    await this.spare();
    return record;
  }

  stamp() {
    this.last = Math.max((this.last ?? 0) + 1, Date.now());
    return this.last;
  }

  // No more sound than a tab may keep.
  async spare() {
    let bytes = [...this.bytes.values()].reduce((sum, size) => sum + size, 0);
    for (const [id, size] of this.bytes) {
      if (bytes <= MOST_SOUND_BYTES) return;
      const record = size && (await done(this.turns("readonly").get([this.tab, id])));
      if (record) await done(this.turns("readwrite").put({ ...record, sound: null }));
      this.bytes.set(id, 0);
      bytes -= size;
    }
  }

  async forget(ids) {
    for (const id of ids) {
      this.written.delete(id);
      this.bytes.delete(id);
    }
    await this.opened;
    for (const id of ids) this.turns("readwrite").delete([this.tab, id]);
  }

  clear() {
    return this.forget([...this.written.keys()]);
  }
}

// ---- what is shown of it

let element, list, mould, inSight; // since it was mounted
const $ = (selector) => element.querySelector(selector);
const FORGOTTEN = "The model no longer remembers what stands above.";
const UNKEPT = "This browser keeps nothing for this page: a reload will forget the conversation.";
const SAYS = { user: "You", assistant: "Answer", reading: "Read aloud" };
const sound = new Audio();
const SAME_S = 0.02;
const BARS = 48; // as many as the server draws of a clip
const CUT_OFF = "Cut off.";
let shown = []; // the entries as JSON, in order
let kept = new Map(); // id -> the entry, as the browser keeps it
let told = []; // what the server still knows, with all that it remembers
let back = false; // the server has said what it knows of this tab
const sounds = new Map(); // id -> address of its sound in this browser
const store = new Store();
const runOf = (id) => id.split(":")[0];
const cleared = new Set(); // runs of which a word may still be on its way
let playing = null; // the clip that is heard

function clock(seconds) {
  const whole = Math.max(1, Math.round(seconds));
  return `${Math.floor(whole / 60)}:${String(whole % 60).padStart(2, "0")}`;
}

// A question that was read as it stands may be answered as well.
const ANSWERS = '#mode-notes [data-input="text"][data-output="speech"][data-does="chat"]';
function offerOf(text) {
  const offer = part("button", "tr-offer", "Answer this question");
  offer.type = "button";
  offer.addEventListener("click", () => document.dispatchEvent(new CustomEvent("answer", { detail: { text, mode: document.querySelector(ANSWERS).dataset.mode } })));
  return offer;
}

// What is read aloud is one thing: the text, its sound, and what was said differently. Anything else is a talk of two.
const letters = (text) => text.toLowerCase().replace(/[^\p{L}\p{N}]+/gu, "");
function gather(entries) {
  const items = [];
  for (let entry of entries) {
    const asked = items.at(-1);
    if (entry.clip) entry = { ...entry, sounding: entry.id };
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
  item.append(part("span", "tr-who", `${SAYS[entry.role]}:`));
  for (const [name, words] of [["tr-text", entry.role === "assistant" ? unspelled(entry.text) : entry.text], ["tr-spoken", entry.spoken && `spoken as “${unspelled(entry.spoken)}”`]]) {
    if (!words) continue;
    const text = part("p", name, words);
    text.dir = "auto";
    text.translate = name !== "tr-text";
    item.append(text);
  }
  if (entry.clip) item.append(clipOf(entry.clip, entry.sounding));
  if (entry.role === "reading" && /\?\s*$/.test(entry.text) && document.querySelector(ANSWERS)) item.append(offerOf(entry.text));
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

function clipOf({ file, seconds, bars }, id) {
  const clip = mould.content.firstElementChild.cloneNode(true);
  const [svg, at] = [clip.querySelector(".clip-wave svg"), clip.querySelector(".clip-at")];
  svg.setAttribute("viewBox", `0 0 ${4 * bars.length} 100`);
  const path = bars.map((height, i) => `M${4 * i} ${50 - Math.max(4, height) / 2}h2.4v${Math.max(4, height)}h-2.4z`).join("");
  for (const drawn of svg.children) drawn.setAttribute("d", path);
  const save = clip.querySelector(".clip-save");
  const source = () => sounds.get(id) ?? file.url; // the server's goes after a while
  save.href = source();
  save.addEventListener("click", () => (save.href = source()));
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
      sound.src = source();
      sound.currentTime = at.value < 1 ? at.value * seconds : 0;
    }
    window.liveAudio.pause();
    keepPace();
    sound.play().catch(() => rest());
  }
  return clip;
}

// Clips are played as fast as replays, and the pitch stays.
function keepPace() {
  sound.playbackRate = sound.defaultPlaybackRate = window.liveAudio.speed;
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

// What the browser kept and the server knows no more stands before what it knows.
function joined() {
  const known = new Set(told.map(({ id }) => id));
  const before = [...kept.values()].filter(({ id }) => !known.has(id));
  const forgotten = back && before.some(({ reads }) => !reads);
  return [...before, ...(forgotten ? [{ role: "forgotten" }] : []), ...told];
}

function show() {
  const entries = gather(joined());
  const wanted = entries.map((entry) => JSON.stringify(entry));
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
  if (longer || wanted.length === 0) element.scrollTop = element.scrollHeight;
}

function take(value) {
  for (const { clip } of value) if (clip) clip.file.url = `${root()}/gradio_api/file=${clip.file.path}`;
  told = value.filter(({ id }) => !cleared.has(runOf(id)));
  show();
  for (const entry of told) keep(entry, () => soundOf(entry));
}

// A question that went on is one with what followed; its first half is gone.
function forgetMended(entries) {
  const known = new Set(entries.map(({ id }) => id));
  const gone = told.slice(told.findLastIndex(({ id }) => known.has(id)) + 1).map(({ id }) => id);
  for (const id of gone) {
    cleared.add(runOf(id));
    kept.delete(id);
  }
  store.forget(gone).catch(unkept);
}

async function keep(entry, fetchSound) {
  try {
    const record = await store.keep(entry, fetchSound);
    if (!cleared.has(runOf(entry.id))) remember(record);
  } catch (error) {
    unkept(error);
  }
}

function remember(record) {
  if (!record) return;
  kept.set(record.id, record.entry);
  if (sounds.has(record.id)) URL.revokeObjectURL(sounds.get(record.id));
  sounds.delete(record.id);
  if (record.sound) sounds.set(record.id, URL.createObjectURL(new Blob([record.sound], { type: "audio/wav" })));
}

// Of the reply that was just heard the sound is here already.
async function soundOf({ id, clip }) {
  await decoded(id);
  const { run, ended, total, rate } = window.liveAudio.state;
  const whole = Math.abs(clip.seconds * rate - total) < SAME_S * rate; // compressed sound may lack its last samples
  if (id === `${run}:a` && ended && whole) return window.liveAudio.wav().arrayBuffer();
  const answer = await fetch(clip.file.url);
  return answer.ok ? answer.arrayBuffer() : null;
}

// Compressed sound is there a moment after its last packet came.
function decoded(id) {
  const over = ({ run, ended }) => id !== `${run}:a` || ended;
  return new Promise((resolve) => {
    function look({ detail }) {
      if (!over(detail)) return;
      document.removeEventListener("liveaudio", look);
      resolve();
    }
    document.addEventListener("liveaudio", look);
    look({ detail: window.liveAudio.state });
  });
}

function unkept(error) {
  console.info(`conversation not kept: ${error}`);
  $(".tr-unkept").textContent = UNKEPT;
}

export function mount(place) {
  element = place;
  [list, mould] = [$(".tr-list"), $("template")];
  inSight = new IntersectionObserver(sighted, { root: element, rootMargin: "10% 0px" });
  document.addEventListener("replayspeed", keepPace);
  for (const name of ["play", "pause"]) sound.addEventListener(name, paint);
  sound.addEventListener("timeupdate", () => playing && sound.duration && follow(playing, sound.currentTime / sound.duration));
  sound.addEventListener("ended", rest);
  // One voice at a time: a clip holds the reply, and a reply that begins or goes on ends the clip.
  document.addEventListener("liveaudio", ({ detail }) => detail.phase === "speaking" && !sound.paused && !window.liveAudio.player.silent && sound.pause());
  // A reply whose server is gone is kept as far as it came.
  document.addEventListener("liveaudio", ({ detail }) => {
    const id = `${detail.run}:a`;
    if (detail.phase !== "lost" || !detail.total || store.written.has(id)) return;
    const clip = { file: { path: id, url: "" }, seconds: detail.total / detail.rate, bars: window.liveAudio.bars(BARS) };
    const asked = kept.get(`${detail.run}:u`);
    if (!asked) return;
    keep({ id, role: "assistant", reads: asked.reads, text: window.liveAudio.text.trim(), note: CUT_OFF, clip }, () => window.liveAudio.wav().arrayBuffer()).then(show);
  });
  // Whoever clears the conversation clears it here, too.
  document.addEventListener("click", ({ target }) => {
    if (!target.closest?.("#clear")) return;
    for (const id of [...kept.keys(), ...store.written.keys(), ...told.map((entry) => entry.id)]) cleared.add(runOf(id));
    cleared.add(window.liveAudio.state.run);
    kept.clear();
    for (const address of sounds.values()) URL.revokeObjectURL(address);
    sounds.clear();
    rest();
    store.clear().catch(unkept);
    take([]);
  });
  element.tabIndex = 0;
  element.setAttribute("role", "region");
  element.setAttribute("aria-labelledby", "said-name");
  window.conversation = { key: () => store.tab };
  document.addEventListener("conversation", ({ detail }) => {
    back ||= detail.whole;
    if (!detail.whole) forgetMended(detail.entries);
    take(detail.entries);
  });
  store.read().then((records) => {
    const late = kept; // what came meanwhile
    kept = new Map();
    for (const record of records) remember(record);
    for (const [id, entry] of late) kept.set(id, entry);
    show();
  }).catch(unkept);
}
