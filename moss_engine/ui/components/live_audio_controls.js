// The controls of the live reply: playing and holding it, moving in it, keeping and sharing it; its figures.

import { complain, write } from "./common.js";
import { $, ask, captions, door, element, live, pcm, player, playFrom, props, rate, showSilence } from "./live_audio.js";
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

export function wire() {
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
  const taken = { wav: save, srt: () => askCaptions("srt"), vtt: () => askCaptions("vtt"), share, keep: keepReplay };
  for (const [name, take] of Object.entries(taken)) {
    $(`.la-${name}`).addEventListener("click", () => {
      $(".la-menu").hidePopover();
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

// A reply as one file that needs nothing else: sound, and captions in step with it. It plays on opening, where it may.

const SHARED_CSS = `:root { color-scheme: light dark; --ink: light-dark(#18211b, #e6ede7); --quiet: light-dark(#56635b, #a0b0a6); --line: light-dark(#dfe5df, #25302a);
  --card: light-dark(#fdfefb, #131a16); --paper: light-dark(#f3f5f0, #0c110e); }
body { margin: 0; background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 820px; margin: 24px auto; padding: 24px 28px; background: var(--card); border: 1px solid var(--line); border-radius: 20px; }
h1 { margin: 0 0 16px; font-size: 15px; font-weight: 600; color: var(--quiet); }
#text { font-size: 26px; line-height: 1.36; margin: 0 0 16px; } #text span { color: var(--quiet); } #text span.said { color: var(--ink); }
audio { width: 100%; }`;
const SHARED_JS = `const reply = JSON.parse(document.getElementById("reply").textContent), audio = document.querySelector("audio");
const words = reply.words.map(({ at, text }) => { const span = document.createElement("span"); span.textContent = text; document.getElementById("text").append(span); return { at, span }; });
const follow = () => { const now = audio.ended ? Infinity : audio.currentTime; for (const { at, span } of words) span.classList.toggle("said", audio.played.length === 0 || at < now); };
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

async function share() {
  const words = [...captions.times(live.total, rate, true)].map(([word, at]) => ({ at: at / rate, text: word.textContent }));
  const table = document.body.dataset.language === "zh" ? await window.first.chinese() : {};
  const [silent, unplayable] = [SILENT, UNPLAYABLE].map((sentence) => table[sentence] ?? sentence);
  const data = JSON.stringify({ words, silent, unplayable }).replaceAll("<", "\\u003c");
  const sound = await dataUrl(wavOf(pcm, rate));
  const policy = "default-src 'none'; media-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'";
  const file = `<!doctype html><html lang="${document.documentElement.lang}"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="${policy}"><title>MOSS-Speech Live</title><style>${SHARED_CSS}</style></head><body><main>
<h1>MOSS-Speech Live · ${new Date().toISOString().slice(0, 16).replace("T", " ")} UTC</h1><p id="text"></p><p id="press" role="status"></p><audio controls src="${sound}"></audio></main>
<script id="reply" type="application/json">${data}</script><script>${SHARED_JS}</script></body></html>`;
  give(new Blob([file], { type: "text/html" }), `moss-speech-${live.run || "reply"}.html`);
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
