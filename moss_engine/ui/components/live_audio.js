// The live reply: joins its place on the page with door, player, captions and waveform.
// Other parts of the page follow along through the document's "liveaudio" events and window.liveAudio, and say what went
// wrong through "problem" events, whose sentence the page shows in one place.

import { BUSY, complain, randomName, root, write } from "./common.js";
import { Door } from "./door.js";
import { pause, wire } from "./live_audio_controls.js";
import { OpusReply, SLOW_PREBUFFER_MS, soundWay } from "./opus.js";
import { Player } from "./player.js";
import { Captions, stamp, TICK_MS, Wave } from "./stage.js";
import { tab } from "./transcript.js";

export let element, rate, captions, player; // since it was mounted
let controls;
const PREBUFFER_MS = 40; // of sound, with which it starts
const REMOTE_PREBUFFER_MS = 150; // behind a share link or on a Space
const WORDLESS = "This answer is speech alone: no text was written for it.";
export const $ = (selector) => element.querySelector(selector);

const blank = () => ({
  phase: null, // idle, sent, refused, waiting, thinking, speaking, stopped, done, failed, lost
  run: null, ended: false, speaks: true, seed: null, placed: null,
  total: 0, played: 0, buffered: 0, underruns: 0, starved: 0, target: 0,
  clickMs: null, byWords: false, firstWordMs: null, firstMs: null, firstPcmMs: null, latencyMs: 0,
  offsetLowMs: null, offsetHighMs: Infinity,
  sound: "pcm", stages: {}, figures: {}, pool: {}, ids: [], pieces: {}, rate, again: false,
  furthest: 0, // samples that reached the ear, wherever the listener is now
});
let wave;
export let live = null; // the reply that is shown; it makes room for the next one when that was accepted
let asked = null; // the question that was sent and is not accepted yet: {run, clickMs, byWords, before, question}
export let pcm = []; // every chunk of the reply, to hear it again and to save it
let opus = null; // what decodes the reply, where it comes compressed
let discard = true; // after Stop, until the next run begins
let clock = null;

// A question was accepted: the reply before it makes room.
function begin({ run, clickMs, byWords }) {
  player.reset();
  live = Object.assign(blank(), { run, clickMs, byWords });
  asked = null;
  pcm = [];
  opus = null;
  clock = null;
  skipped = { samples: 0, underruns: 0, starved: 0 };
  discard = false;
  element.classList.add("la-begun"); // before its first word, as the room of the captions depends on it
  captions.begin();
  wave.begin();
  $(".la-spoken").textContent = "";
  $(".la-hint").textContent = document.querySelector("#mode-notes [data-mode]:not([hidden])").dataset.hint;
  complain("");
}

// The first word to a question: it was accepted, or it never will be.
function answered(message) {
  cut = "";
  if (message.now_s !== null) begin(asked);
  else if (message.end) refused(message.state === "failed" ? message.note : "");
}

// A message of a reply, with its sound as an ArrayBuffer, or null.
function take(message, sound) {
  const now = performance.now();
  if (message.run === asked?.run) answered(message);
  if (discard || message.run !== live.run) return;
  if (message.pool) live.pool = message.pool;
  const chunk = sound && message.sound === "pcm" ? new Int16Array(sound) : null;
  if (chunk) { // before anything else: it is waited for
    if (live.total === 0) player.expect(message.figures.ttfa_ms, live.pool.running - 1);
    player.push(chunk.slice());
  }
  if (message.now_s !== null) {
    live.offsetLowMs = live.clickMs - 1000 * (message.stages.received ?? 0); // accepted so long after it was received
    live.offsetHighMs = Math.min(live.offsetHighMs, now - 1000 * message.now_s);
  }
  live.ids.push(...message.ids);
  Object.assign(live.pieces, message.pieces);
  const { stages, figures, seed, speaks, placed, sound: way } = message;
  Object.assign(live, { stages, figures, seed, speaks, placed, sound: way });
  for (const [start, text] of message.text) captions.add(start, text);
  if (message.text.length) live.firstWordMs ??= now;
  element.classList.toggle("la-opus", live.sound === "opus" && live.speaks);
  if (chunk) takePcm(chunk, now);
  if (sound && message.sound === "opus") takeOpus(message.head, new Uint8Array(sound));
  if (message.end) finishAfter(opus, message);
  else if (live.total === 0) phase(message.stages.started === undefined ? "waiting" : "thinking");
  live.inLine = message.state === "waiting" && !message.end; // at first, or in the middle as its replica is gone
  showStatus();
  announce();
}

// A decoder that belongs to a reply of before gives its samples to nobody.
function takeOpus(head, packets) {
  const mine = (opus ??= new OpusReply(rate, head, (chunk) => opus === mine && !discard && takeDecoded(chunk), () => opus === mine && cutOff()));
  mine.push(packets);
}

function takeDecoded(chunk) {
  player.push(chunk.slice());
  takePcm(chunk, performance.now());
}

async function finishAfter(decoding, message) {
  if (decoding) await decoding.end();
  if (message.run !== live.run || opus !== decoding || discard) return;
  finish(message);
  announce();
}

// Of what the player has already.
function takePcm(chunk, now) {
  live.firstPcmMs ??= now;
  live.total += chunk.length;
  pcm.push(chunk);
  wave.push(chunk);
  if (live.total > rate) noteWords(); // the first word may come behind the first sound
  phase("speaking");
}

const noteWords = () => captions.text || ($(".la-hint").textContent = WORDLESS);

function finish(message) {
  live.ended = true;
  if (live.total && message.state !== "stopped") noteWords();
  player.end();
  if (!live.speaks) $(".la-spoken").textContent = captions.text; // a voice speaks for itself
  if (message.state === "failed") {
    phase("failed");
    complain(message.note);
  } else if (live.total === 0) phase(message.state === "stopped" ? "stopped" : "done");
}

// Asking and stopping: what the page calls, and what becomes of a question before its reply begins.

let cut = ""; // the newest reply and how much of it was heard, where it was not heard whole

// The controls as they stand. What is not offered is not there, and is as the server has it.
function chosen() {
  const values = {};
  for (const name of controls) {
    const place = document.getElementById(name.replaceAll("_", "-"));
    const input = place?.querySelector("input[type=radio]:checked, input[type=number], input[type=checkbox], textarea");
    if (input) values[name] = { number: input.valueAsNumber, checkbox: input.checked }[input.type] ?? input.value;
  }
  return values;
}

// What was typed and sent, or said, at a time of the page's clock; it may have values of its `own`. A reply that still speaks
// falls silent, but all that is shown stays until the question is accepted.
function askTyped(question, ms, own) {
  ask({ ...chosen(), ...own, text: question }, { question, ms });
}
function askSpoken(utterance, ms, byWords) {
  ask({ ...chosen(), utterance }, { ms, byWords });
}

// What is being said has no name yet. The server is told how it will be asked, so that it may begin the answer.
function prepare() {
  door.send({ type: "response.prepare", values: { ...chosen(), utterance: "now" } });
}

function ask(values, { question, ms = performance.now(), byWords = false } = {}) {
  noteCut();
  player.unlock();
  const way = soundWay(live);
  const run = randomName().slice(0, 8);
  const before = BUSY.includes(live.phase) ? "stopped" : live.phase;
  door.send({ type: "response.create", values, run, heard: cut, sound: way });
  if (BUSY.includes(live.phase)) breakOff("stopped", true);
  asked = { run, clickMs: ms, byWords, before, question };
  player.wait(way === "opus" ? SLOW_PREBUFFER_MS : null);
  phase("sent");
  if (gone) complain(GONE);
  document.dispatchEvent(new Event("asked"));
}

// Silence at once, and the server is told what was heard.
function stop() {
  if (!BUSY.includes(live.phase)) return;
  breakOff("stopped");
  door.send({ type: "response.cancel", heard: cut });
}

function clear() {
  if (BUSY.includes(live.phase)) breakOff("stopped");
  door.send({ type: "conversation.clear" });
}

function breakOff(name, replaced = false) {
  noteCut();
  const back = takeBack(replaced);
  if (back) return phase(back === "idle" ? name : back);
  freeze(false);
  player.reset();
  discard = true;
  live.buffered = 0;
  live.ended = true;
  phase(name);
}

// Nobody waits for an answer to the question any more; says what the page showed before it. What was taken out of the box
// goes back, or beside the box where another question replaced it.
function takeBack(replaced = false) {
  const { before, question } = asked ?? {};
  if (question !== undefined) document.dispatchEvent(new CustomEvent("unasked", { detail: { question, replaced } }));
  asked = null;
  return before;
}

function noteCut() {
  if (asked) cut = `${asked.run}:0`;
  else if (BUSY.includes(live.phase) && !live.again) cut = `${live.run}:${Math.ceil(Math.max(live.furthest, heard()))}`;
}

// There is no reply to this question: what was shown stays as it is.
function refused(sentence) {
  if (!asked) return;
  phase(takeBack());
  live.refused = true;
  if (sentence) complain(sentence);
  announce();
}

// Whether more is to come of a reply that is waited for: sound that has come is heard first.
function waits() {
  if (asked) return true;
  const sounding = live.buffered > 0 && (clock?.running || player.silent);
  return BUSY.includes(live.phase) && !live.ended && !sounding;
}

// The server knows nothing of this reply any more; one that has come whole is heard to its end.
function cutOff() {
  if (asked || (BUSY.includes(live.phase) && !live.ended)) breakOff("lost");
}

// What comes through the door. What is other parts' is an event of the document, called as it is there.

const QUIET_MS = 4000; // while a reply is open, something comes four times a second
const WATCH_MS = 1000;
const LOST = "The connection to the server was lost, and the rest of this answer with it. What was heard can be played again; ask again when the connection is back.";
const GONE = "The connection to the server was lost. This page waits for it and then comes back by itself, with what you typed.";

const TAKES = {
  "response.update": take,
  "pool.updated": ({ pool }) => {
    live.pool = pool;
    announce();
  },
  error: ({ message }) => {
    refused("");
    complain(message);
  },
};

let quietSince = performance.now();
export let door = null;
let gone = false; // the page says so
function openDoor() {
  const address = new URL(`${root()}/gradio_api/live`, location.href);
  address.protocol = address.protocol.replace("http", "ws");
  door = new Door(address, tab, {
    event(event, sound) {
      quietSince = performance.now();
      if (Object.hasOwn(TAKES, event.type)) TAKES[event.type](event, sound);
      else document.dispatchEvent(new CustomEvent(event.type, { detail: event }));
    },
    broken() {
      gone = true;
      complain(GONE);
      showStatus();
    },
    back(renewed, resumed) {
      if (renewed) return location.reload(); // another program answers, whose page may be another one
      if (gone) complain("");
      gone = false;
      showStatus();
      if (!resumed) document.dispatchEvent(new Event("anew"));
    },
    refused: complain,
    lost() {
      cutOff();
      complain(gone ? GONE : LOST);
    },
  });
  setInterval(() => {
    const now = performance.now();
    if (!waits() || !door.isOpen) quietSince = now;
    else if (now - quietSince > QUIET_MS) door.renew();
  }, WATCH_MS);
}

// What the sound card says: where the ear is in the reply, and moving it elsewhere.

let skipped = { samples: 0, underruns: 0, starved: 0 }; // before the place from which the player was last started

function hear(report) {
  if (report.first !== undefined) live.firstMs ??= player.toPageMs(report.first);
  else {
    const { state, played, buffered, underruns, starved, target } = report;
    Object.assign(live, {
      played: skipped.samples + played, buffered, underruns: skipped.underruns + underruns,
      starved: skipped.starved + starved, target: (1000 * target) / rate,
    });
    live.latencyMs = player.outputLatencyMs;
    if (state === "done" && live.ended && live.phase === "speaking") phase("done");
    clock = { played: live.played, at: performance.now(), running: state === "play" && !player.silent };
    showStatus();
  }
  live.heardAfterMs = live.firstMs === null ? null : live.firstMs + player.outputLatencyMs - live.clickMs;
  announce();
}

// Samples before the one that is at the ear now.
export function heard() {
  if (!clock || live.total === 0 || live.played === 0) return 0;
  const since = clock.running ? performance.now() - clock.at : 0;
  const lag = live.phase === "done" ? 0 : live.latencyMs;
  return Math.max(0, Math.min(live.total, clock.played + ((since - lag) * rate) / 1000));
}

function freeze(running) {
  clock = { played: heard() + (live.latencyMs * rate) / 1000, at: performance.now(), running };
}

// Whether there is sound to move in.
const seekable = () => live.total > 0 && !asked && ["speaking", "done", "stopped", "lost", "failed"].includes(live.phase);

// Go on hearing from a sample on: of a reply that is still being made, too.
export function playFrom(sample) {
  const start = Math.max(0, Math.min(live.total, Math.round(sample)));
  live.furthest = Math.max(live.furthest, heard());
  live.again ||= live.phase !== "speaking";
  player.unlock();
  player.reset();
  skipped = { samples: start, underruns: live.underruns, starved: live.starved };
  live.played = start;
  clock = start ? { played: start, at: performance.now(), running: false } : null;
  let at = 0;
  for (const chunk of pcm) {
    if (at + chunk.length > start) player.push(chunk.slice(Math.max(0, start - at)));
    at += chunk.length;
  }
  if (live.ended) player.end();
  phase("speaking");
}

// What the visitor sees of the reply's state.

const SAYS = {
  idle: "Ready", sent: "Sending", waiting: "Waiting for a place", thinking: "Thinking",
  speaking: "Speaking", stopped: "Stopped", done: "Finished", failed: "Failed", lost: "Cut off",
};

function phase(name) {
  live.refused = false;
  if (live.phase === name) return;
  live.phase = name;
  live.inLine = false;
  element.dataset.phase = name;
  document.body.classList.toggle("busy", BUSY.includes(name));
  showStatus();
  element.classList.remove("la-paused");
  if (player.silent) showSilence();
  $(".la-pause").disabled = $(".la-place").disabled = !seekable();
  $(".la-save").disabled = live.total === 0;
  $(".la-share").disabled = !live.ended;
  for (const name of [".la-srt", ".la-vtt"]) $(name).disabled = !live.ended || !captions.text;
  announce();
}

// Whether it is held, by the visitor or by the browser, which may take the sound away at any time.
export function showSilence() {
  if (live.phase !== "speaking") return;
  freeze(!player.silent);
  element.classList.toggle("la-paused", player.silent);
  showStatus();
}

// Until its first sample is played the browser opens the sound device, or finds none.
function status() {
  if (gone && waits()) return "Waiting for the connection";
  if (live.inLine) return `${SAYS.waiting} (${live.pool.waiting ?? 0} in line)`;
  if (live.phase !== "speaking" || !player.silent) return SAYS[live.phase];
  return live.firstMs === null && !player.paused && !player.held ? "Waiting for the sound device" : "Paused";
}
const showStatus = () => write($(".la-status"), status());

let announced = 0;
let pendingAnnounce = 0;
function announce() {
  if (pendingAnnounce) return;
  const wait = Math.max(0, TICK_MS - (performance.now() - announced));
  pendingAnnounce = setTimeout(() => {
    pendingAnnounce = 0;
    announced = performance.now();
    document.dispatchEvent(new CustomEvent("liveaudio", { detail: live }));
  }, wait);
}

let shown = "";
function tick() {
  const now = heard();
  const whole = live.ended && (live.phase !== "speaking" || live.again);
  const key = `${Math.round(now)} ${live.total} ${live.phase} ${captions.segments.length} ${whole}`;
  if (key === shown) return;
  shown = key;
  const silent = !live.speaks || (live.ended && now >= live.total); // what is written after the sound is not heard
  captions.show(silent ? Infinity : now, live.total, rate, live.ended);
  wave.tick(now, whole);
  $(".la-time").textContent = `${stamp(now / rate)} / ${stamp(live.total / rate)}`;
}

export function mountLive(place, told) {
  element = place;
  ({ rate, controls } = told);
  live = blank();
  captions = new Captions($(".la-text"));
  wave = new Wave($(".la-sound"), rate, (sample) => seekable() && playFrom(sample));
  const remote = /\.(gradio\.live|hf\.space)$/.test(location.hostname);
  player = new Player(rate, remote ? REMOTE_PREBUFFER_MS : PREBUFFER_MS, hear, showSilence);
  wire();
  element.classList.toggle("la-plain", !player.exact);
  setInterval(tick, TICK_MS);
  window.liveAudio = {
    askTyped, askSpoken, prepare, stop, clear, pause, player,
    get door() { return door; },
    get state() { return live; },
    get asking() { return asked !== null; },
    get busy() { return asked !== null || BUSY.includes(live.phase); },
    get saying() { return captions.around(heard(), live.total, rate, live.ended); },
    get heard() { return asked ? 0 : heard(); },
  };
  phase("idle");
  openDoor();
}
