// The controls of the live reply: playing and holding it, moving in it, keeping and sharing it; its figures.

import { complain, write } from "./common.js";
import { $, captions, element, live, pcm, player, playFrom, rate, showSilence } from "./live_audio.js";
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
  $(".la-volume").addEventListener("input", ({ target }) => player.setVolume(target.value / 100));

  for (const gesture of ["pointerdown", "keydown"]) {
    document.addEventListener(gesture, () => player.unlock(), { capture: true, once: true });
  }
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden && player.context && !player.paused) player.context.resume();
  });
  wireKeeping();
}

// What of a reply can be taken away, in one menu: its sound, its captions, and a page to send.

const GAP_PX = 8;
function wireKeeping() {
  const menu = $(".la-menu");
  const taken = { wav: save, srt: () => saveCaptions("srt"), vtt: () => saveCaptions("vtt"), share };
  for (const [name, take] of Object.entries(taken)) {
    $(`.la-${name}`).addEventListener("click", () => {
      menu.hidePopover();
      take();
    });
  }
  // At its button, in browsers without anchors, too.
  menu.addEventListener("beforetoggle", () => {
    const { top, bottom, right } = $(".la-save").getBoundingClientRect();
    const above = bottom > innerHeight / 2;
    const place = { top: scrollY + (above ? top - GAP_PX : bottom + GAP_PX), right: document.documentElement.clientWidth - right };
    Object.assign(menu.style, { top: `${place.top}px`, right: `${place.right}px`, translate: above ? `0 max(-100%, ${2 * GAP_PX - top}px)` : "" });
  });
}

// The words as they are marked here: a sentence each, or a part of a long one.
const CUE_CHARS = 84;
function cues() {
  const found = [];
  for (const [text, begins, ends] of captions.timed(live.total, rate)) {
    const last = found.at(-1);
    const goesOn = last && !/[.?!…。？！]$/.test(last.text) && last.text.length + text.length < CUE_CHARS;
    if (goesOn) Object.assign(last, { ends, text: `${last.text} ${text}` });
    else found.push({ begins, ends, text });
  }
  return found;
}

const span = ({ begins, ends }) => [begins, ends].map((seconds) => new Date(Math.round(1000 * seconds)).toISOString().slice(11, 23)).join(" --> ");
const FORMATS = {
  srt: (cue, i) => `${i + 1}\n${span(cue).replaceAll(".", ",")}\n${cue.text}\n\n`,
  vtt: (cue, i) => `${i ? "" : "WEBVTT\n\n"}${span(cue)}\n${cue.text.replaceAll("&", "&amp;").replaceAll("<", "&lt;")}\n\n`,
};
const saveCaptions = (format) => give(new Blob(cues().map(FORMATS[format]), { type: "text/plain" }), `moss-speech-${live.run}.${format}`);

document.addEventListener("dragover", (event) => event.dataTransfer?.types.includes("Files") && event.preventDefault());
document.addEventListener("drop", (event) => {
  if (!event.dataTransfer?.files.length) return;
  event.preventDefault(); // or the browser leaves the page for the file
  if (document.body.dataset.input !== "speech") complain("To ask with a file, switch to talk and drop it again.");
}, true);

// A reply as one file that needs nothing else: sound, and captions in step with it. It plays on opening, where browsers let
// it, and at a press elsewhere.

const SHARED_CSS = `:root { color-scheme: light dark; --ink: light-dark(#18211b, #e6ede7); --quiet: light-dark(#56635b, #a0b0a6); }
body { margin: 0; background: light-dark(#fdfefb, #131a16); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 760px; margin: 0 auto; padding: 32px 24px; }
h1 { margin: 0 0 16px; font-size: 15px; font-weight: 600; color: var(--quiet); }
#text { font-size: 26px; line-height: 1.36; margin: 0 0 16px; } #text span { color: var(--quiet); } #text span.said { color: var(--ink); }
audio { width: 100%; }`;
const SHARED_JS = `const audio = document.querySelector("audio");
const words = JSON.parse(document.getElementById("words").textContent).map(({ at, text }) => {
  const span = document.createElement("span");
  span.textContent = text;
  document.getElementById("text").append(span);
  return { at, span };
});
setInterval(() => {
  const now = audio.ended || audio.played.length === 0 ? Infinity : audio.currentTime;
  for (const { at, span } of words) span.classList.toggle("said", at < now);
}, 50);`;

function dataUrl(blob) {
  return new Promise((resolve) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.readAsDataURL(blob);
  });
}

async function share() {
  const words = [...captions.times(live.total, rate, true)].map(([word, at]) => ({ at: at / rate, text: word.textContent }));
  const data = JSON.stringify(words).replaceAll("<", "\\u003c");
  const sound = await dataUrl(wavOf(pcm, rate));
  const policy = "default-src 'none'; media-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'";
  const file = `<!doctype html><html lang="${document.documentElement.lang}"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="${policy}"><title>MOSS-Speech Live</title><style>${SHARED_CSS}</style></head><body><main>
<h1>MOSS-Speech Live · ${new Date().toISOString().slice(0, 16).replace("T", " ")} UTC</h1><p id="text"></p><audio controls autoplay src="${sound}"></audio></main>
<script id="words" type="application/json">${data}</script><script>${SHARED_JS}</script></body></html>`;
  give(new Blob([file], { type: "text/html" }), `moss-speech-${live.run || "reply"}.html`);
}

// The reply in two figures and plain words. The engine's own figures are the panel's.

function say(name, value, words, bad = false) {
  const part = $(`.la-headline [data-say="${name}"]`);
  const [figure, text] = part.children;
  write(figure, value);
  write(text, words);
  part.classList.toggle("la-bad", bad);
}

const seconds = (ms) => `${(ms / 1000).toFixed(2)} s`;

function headline(live) {
  element.classList.toggle("la-written", live.run !== null && !live.speaks);
  const { clickMs, firstWordMs, heardAfterMs, starved } = live;
  const after = live.speaks ? heardAfterMs : firstWordMs && firstWordMs - clickMs;
  say("heard", after == null ? "–" : seconds(after), `from your ${live.byWords ? "last word" : "press"} to the first ${live.speaks ? "sound" : "word"}`);
  const gaps = live.underruns;
  const missing = `the sound had to wait, ${Math.round((1000 * starved) / rate)} ms in all`;
  if (live.total) say("gaps", gaps ? `${gaps} gap${gaps > 1 ? "s" : ""}` : "No gaps", gaps ? missing : "the sound never had to wait", gaps > 0);
  else say("gaps", "–", live.speaks ? "gaps in the sound" : "no sound: the answer is written");
}
document.addEventListener("liveaudio", ({ detail }) => headline(detail));
