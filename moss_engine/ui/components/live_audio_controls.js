// The controls of the live reply: playing and holding it, moving in it, keeping and sharing it; its figures.

import { complain, write } from "./common.js";
import { $, ask, BUSY, captions, door, element, heard, live, pcm, player, playFrom, props, rate, scope, seekable, showSilence } from "./live_audio.js";
import { wavOf } from "./player.js";

function pauseOrReplay() {
  if (live.phase !== "speaking") return playFrom(0);
  if (player.silent) player.resume();
  else player.pause();
  showSilence();
}

// As something else is to be heard.
export function pause() {
  if (live.phase === "speaking" && !player.silent) pauseOrReplay();
}

function give(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

const save = () => give(wavOf(pcm, rate), `moss-speech-${live.run || "reply"}.wav`);

const STEPS_S = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: 5, PageDown: -5 };

export function wire() {
  document.addEventListener("ownlevel", ({ detail }) => {
    levels = [...levels, detail].slice(-OWN_BARS);
    drawOwn();
  });
  document.addEventListener("recorder", ({ detail }) => {
    const heardNow = ["recording", "listening", "hearing"].includes(detail.state) && !BUSY.includes(live.phase);
    if (heardNow && !element.classList.contains("la-hears")) levels = [];
    element.classList.toggle("la-hears", heardNow);
  });
  $(".la-pause").addEventListener("click", pauseOrReplay);
  const volume = $(".la-volume");
  const mute = $(".la-mute");
  volume.addEventListener("input", () => player.setVolume(volume.value / 100, false));
  mute.addEventListener("click", () => player.setVolume(volume.value / 100, !player.muted));
  for (const control of [volume, mute]) {
    control.addEventListener(control === mute ? "click" : "input", () => {
      mute.setAttribute("aria-pressed", player.muted);
      element.classList.toggle("la-muted", player.muted || volume.value === "0");
    });
  }

  // The scope is a slider: a press, a drag and the arrow keys move the place that is heard.
  const place = $(".la-scope");
  place.addEventListener("keydown", (event) => {
    const target = { Home: 0, End: live.total }[event.key] ?? heard() + STEPS_S[event.key] * rate;
    if (Number.isNaN(target) || !seekable()) return;
    event.preventDefault();
    playFrom(target);
  });
  place.addEventListener("pointerdown", (event) => {
    if (!seekable() || event.button !== 0) return;
    const show = ({ clientX }) => scope.point(clientX - place.getBoundingClientRect().left);
    const release = (last) => {
      place.removeEventListener("pointermove", show);
      for (const name of ["pointerup", "pointercancel"]) place.removeEventListener(name, release);
      const target = scope.sampleAt(last.clientX - place.getBoundingClientRect().left);
      scope.point(null);
      if (last.type === "pointerup" && seekable()) playFrom(target);
    };
    place.setPointerCapture(event.pointerId);
    place.addEventListener("pointermove", show);
    for (const name of ["pointerup", "pointercancel"]) place.addEventListener(name, release);
    show(event);
  });

  for (const gesture of ["pointerdown", "keydown"]) {
    document.addEventListener(gesture, () => player.unlock(), { capture: true, once: true });
  }
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden && player.context && !player.paused) player.context.resume();
  });
  wireKeeping();
}

// What of a reply can be taken away, in one menu: its sound, its captions, a page to send, and a replay file, from which the same sound
// is made again without the network. A replay file is opened by dropping it anywhere on the page, or by the panel's button.

function wireKeeping() {
  const keeping = $(".la-keeping");
  const menu = $(".la-menu");
  function showMenu(shown) {
    menu.hidden = !shown;
    $(".la-save").setAttribute("aria-expanded", shown);
  }
  $(".la-save").addEventListener("click", () => {
    showMenu(menu.hidden);
    if (!menu.hidden) menu.querySelector("button:not(:disabled)")?.focus();
  });
  const elsewhere = (target) => !menu.hidden && target && !keeping.contains(target);
  document.addEventListener("pointerdown", ({ target }) => elsewhere(target) && showMenu(false));
  keeping.addEventListener("focusout", ({ relatedTarget }) => elsewhere(relatedTarget) && showMenu(false));
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || menu.hidden) return;
    event.stopImmediatePropagation(); // it closes the menu, and stops nothing
    showMenu(false);
    $(".la-save").focus();
  }, true);
  const taken = { wav: save, srt: () => askCaptions("srt"), vtt: () => askCaptions("vtt"), share, keep: keepReplay };
  for (const [name, take] of Object.entries(taken)) {
    $(`.la-${name}`).addEventListener("click", () => {
      showMenu(false);
      $(".la-save").focus();
      take();
    });
  }
}

// The server writes them, as it does for programs, of the words as they are marked here.
function askCaptions(format) {
  door.send({ type: "captions.create", format, words: captions.timed(live.total, rate) });
}

export function giveCaptions({ format, text }) {
  give(new Blob([text], { type: "text/plain" }), `moss-speech-${live.run}.${format}`);
}

// Rows, text and settings, not the sound: that follows from them.
function keepReplay() {
  const text = captions.segments.map((segment) => [segment.start, segment.text]);
  const { ids, parts, pauses, stages, figures } = live;
  const kept = JSON.stringify({ ...live.recipe, parts, pauses, ids, text, stages, figures });
  if (kept.length > props.replay_bytes) complain(`This reply is too long for a replay file, which holds ${props.replay_bytes / 1024} kB; save its sound.`);
  else give(new Blob([kept], { type: "application/json" }), `moss-speech-${live.run}.replay.json`);
}

// Looked at by the server first, as a refusal must not silence what is heard.
let file = "";
async function openReplay(chosen) {
  if (chosen.size > props.replay_bytes) {
    complain(`The file is larger than ${props.replay_bytes / 1024} kB, which no replay file is; choose another one.`);
    return;
  }
  player.unlock();
  file = await chosen.text();
  door.send({ type: "replay.check", file });
}

export function considered(sentence) {
  if (sentence) complain(sentence);
  else ask({ type: "replay.create", file }, { recorded: true });
}

const isReplay = ({ name, type }) => type === "application/json" || /\.json$/i.test(name);
document.addEventListener("dragover", (event) => event.dataTransfer?.types.includes("Files") && event.preventDefault());
document.addEventListener("drop", (event) => {
  const dropped = [...(event.dataTransfer?.files ?? [])].find(isReplay);
  if (!dropped) return;
  event.preventDefault();
  event.stopImmediatePropagation();
  openReplay(dropped);
}, true);
document.addEventListener("openreplay", ({ detail }) => openReplay(detail));

// A reply as one file that needs nothing else: sound, captions in step with it, figures, waterfall and tokens.

const SHARED_CSS = `:root { color-scheme: light dark; --ink: light-dark(#18211b, #e6ede7); --quiet: light-dark(#56635b, #a0b0a6); --line: light-dark(#dfe5df, #25302a);
  --moss: light-dark(#2f6f4a, #7fcf9b); --card: light-dark(#fdfefb, #131a16); --paper: light-dark(#f3f5f0, #0c110e); }
body { margin: 0; background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 820px; margin: 24px auto; padding: 24px 28px; background: var(--card); border: 1px solid var(--line); border-radius: 20px; }
h1 { margin: 0 0 16px; font-size: 15px; font-weight: 600; color: var(--quiet); } h2 { font-size: 14px; margin: 24px 0 8px; color: var(--quiet); }
#text { font-size: 26px; line-height: 1.36; margin: 0 0 16px; } #text span { color: var(--quiet); } #text span.said { color: var(--ink); }
audio { width: 100%; } dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(150px, 1fr)); gap: 10px 20px; margin: 0; }
dt { font-size: 12.5px; color: var(--quiet); } dd { margin: 0; font-weight: 600; } table { border-collapse: collapse; width: 100%; } td { padding: 2px 8px 2px 0; font-size: 13px; }
td:nth-child(2) { width: 60%; } td i { display: block; height: 9px; border-radius: 3px; background: var(--moss); } td:last-child { text-align: right; }
#tokens { display: flex; flex-wrap: wrap; gap: 3px; font: 11.5px ui-monospace, monospace; } #tokens span { border: 1px solid var(--line); border-radius: 5px; padding: 1px 5px; }
#tokens .text { border-color: var(--moss); }`;
const SHARED_JS = `const reply = JSON.parse(document.getElementById("reply").textContent), audio = document.querySelector("audio");
const words = reply.words.map(({ at, text }) => { const span = document.createElement("span"); span.textContent = text; document.getElementById("text").append(span); return { at, span }; });
const follow = () => { const now = audio.ended ? Infinity : audio.currentTime; for (const { at, span } of words) span.classList.toggle("said", audio.played.length === 0 || at < now); };
const fill = (place, make, items) => document.getElementById(place).append(...items.map(make));
const part = (tag, text, name) => Object.assign(document.createElement(tag), { textContent: text, className: name ?? "" });
fill("figures", ([name, value]) => { const box = part("div", ""); box.append(part("dt", name), part("dd", value)); return box; }, reply.figures);
fill("stages", ([name, left, width, value]) => { const row = part("tr", ""), bar = part("td", ""), line = part("i", ""); line.style.cssText = "margin-left:" + left + ";width:" + width; bar.append(line); row.append(part("td", name), bar, part("td", value)); return row; }, reply.stages);
fill("tokens", ([kind, text]) => part("span", text, kind), reply.tokens);
for (const name of ["timeupdate", "seeked", "ended", "play"]) audio.addEventListener(name, follow);
setInterval(() => audio.paused || follow(), 50); follow();
const press = document.getElementById("press"), GESTURES = ["click", "keydown"];
const begin = ({ target } = {}) => target === audio || audio.play().catch(({ name }) => { press.textContent = name === "NotAllowedError" ? reply.silent : reply.unplayable; });
audio.addEventListener("play", () => { press.textContent = ""; for (const name of GESTURES) removeEventListener(name, begin); });
for (const name of GESTURES) addEventListener(name, begin);
begin();`;

const SILENT = "Your browser plays no sound before a press: click anywhere, or press any key.";
const UNPLAYABLE = "Your browser cannot play the sound in this file; open it in another one.";

function dataUrl(blob) {
  return new Promise((resolve) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.readAsDataURL(blob);
  });
}

// What the panel shows of this reply, as [name, value] and [name, left, width, value].
function panelFigures() {
  const text = (box, selector) => box.querySelector(selector).textContent.trim();
  const tiles = [...document.querySelectorAll("#panel .tile")].map((box) => [text(box, ".tile-name"), `${text(box, "b")} ${text(box, "small")}`.trim()]);
  const facts = [...document.querySelectorAll("#panel .facts div")].map((box) => [text(box, "dt"), text(box, "dd")]);
  const stages = [...document.querySelectorAll("#panel .fall-row:not([hidden])")].map((row) => [text(row, "span"), ...["marginLeft", "width"].map((name) => row.querySelector("i").style[name]), text(row, "b")]);
  return { figures: [...tiles, ...facts], stages };
}

async function sharedFile() {
  window.dispatchEvent(new Event("engine"));
  await window.panel;
  const words = [...captions.times(live.total, rate, true)].map(([word, at]) => ({ at: at / rate, text: word.textContent }));
  const tokens = live.ids.map((id) => (id < 0 ? ["code", ~id] : ["text", live.pieces[id]]));
  const table = document.body.dataset.language === "zh" ? await window.first.chinese() : {};
  const [silent, unplayable] = [SILENT, UNPLAYABLE].map((sentence) => table[sentence] ?? sentence);
  const data = JSON.stringify({ words, tokens, silent, unplayable, ...panelFigures() }).replaceAll("<", "\\u003c");
  const sound = await dataUrl(wavOf(pcm, rate));
  const policy = "default-src 'none'; media-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'";
  return `<!doctype html><html lang="${document.documentElement.lang}"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="${policy}"><title>MOSS-Speech Live</title><style>${SHARED_CSS}</style></head><body><main>
<h1>MOSS-Speech Live · ${new Date().toISOString().slice(0, 16).replace("T", " ")} UTC</h1><p id="text"></p><p id="press" role="status"></p><audio controls src="${sound}"></audio>
<h2>${SHARED_SAYS.figures()}</h2><dl id="figures"></dl><h2>${SHARED_SAYS.stages()}</h2><table><tbody id="stages"></tbody></table>
<h2>${SHARED_SAYS.tokens()}</h2><div id="tokens"></div></main>
<script id="reply" type="application/json">${data}</script><script>${SHARED_JS}</script></body></html>`;
}

// The headings are the panel's own, in the language that it speaks.
const heading = (selector) => document.querySelector(`#panel ${selector}`).firstChild.textContent.trim();
const SHARED_SAYS = {
  figures: () => document.querySelector("#panel .details-open").textContent.trim(),
  stages: () => heading(".fall h3"), tokens: () => heading(".ids h3"),
};

async function share() {
  give(new Blob([await sharedFile()], { type: "text/html" }), `moss-speech-${live.run || "reply"}.html`);
}

// The reply in three figures and plain words. The engine's own figures are the panel's.

const SPEED_SINCE_S = 1; // of sound: before, the time to the first of it outweighs the rest

function say(name, value, words, bad = false) {
  const part = $(`.la-headline [data-say="${name}"]`);
  const [figure, text] = part.children;
  write(figure, value);
  write(text, words);
  part.classList.toggle("la-bad", bad);
}

const seconds = (ms) => `${(ms / 1000).toFixed(2)} s`;

function headline(live) {
  element.classList.toggle("la-begun", live.run !== null);
  element.classList.toggle("la-written", live.run !== null && !live.speaks);
  const { heardAfterMs, figures, starved } = live;
  if (live.speaks) say("heard", heardAfterMs == null ? "–" : seconds(heardAfterMs), live.byWords ? "from your last word to the first sound" : "from your press to the first sound");
  else say("heard", figures.first_row_ms == null ? "–" : seconds(figures.first_row_ms), "from your question to the first word");
  const known = figures.rtf && figures.audio_s >= SPEED_SINCE_S;
  const slow = known && figures.rtf >= 1;
  const gaps = live.underruns;
  const factor = known ? (slow ? figures.rtf : 1 / figures.rtf) : 0;
  say("speed", known ? `${factor.toFixed(factor < 9.95 ? 1 : 0)}×` : "–", slow ? "slower than it is spoken" : gaps ? "made faster than it is spoken; it came late" : "faster than it is spoken", slow);
  const missing = `the sound had to wait, ${Math.round((1000 * starved) / rate)} ms in all`;
  if (live.total) say("gaps", gaps ? `${gaps} gap${gaps > 1 ? "s" : ""}` : "No gaps", gaps ? missing : "the sound never had to wait", gaps > 0);
  else say("gaps", "–", live.speaks ? "gaps in the sound" : "no sound: the answer is written");
}
document.addEventListener("liveaudio", ({ detail }) => headline(detail));

// While the visitor is listened to, the scope shows how loud they are: the newest sound at the right edge.

const OWN_BARS = 96;
const OWN_STEP = 1.6; // a voice at arm's length fills the height
let levels = [];

function drawOwn() {
  const ownCanvas = $(".la-own");
  const { clientWidth: width, clientHeight: height } = ownCanvas;
  const ratio = devicePixelRatio || 1;
  Object.assign(ownCanvas, { width: width * ratio, height: height * ratio });
  const paint = ownCanvas.getContext("2d");
  paint.scale(ratio, ratio);
  paint.fillStyle = getComputedStyle(ownCanvas).color;
  const step = width / OWN_BARS;
  levels.forEach((level, i) => {
    const tall = Math.max(2, Math.min(1, level * OWN_STEP) * height);
    paint.fillRect((OWN_BARS - levels.length + i) * step, (height - tall) / 2, Math.max(1, step - 2), tall);
  });
}
