// Joins the Gradio component with player, captions and scope. `element`, `props` and `watch` come from gr.HTML.
// Other parts of the page follow along through the document's "liveaudio" events and window.liveAudio, and say what went
// wrong through "problem" events, whose sentence the page shows in one place.

const $ = (selector) => element.querySelector(selector);
const rate = props.sample_rate;
const remote = /\.(gradio\.live|hf\.space)$/.test(location.hostname);
const captions = new Captions($(".la-text"));
const scope = new Scope($(".la-scope"), rate);
const player = new Player(rate, remote ? props.remote_prebuffer_ms : props.prebuffer_ms, hear, showSilence);
const root = (window.gradio_config?.root || "").replace(/\/$/, "");

const blank = () => ({
  phase: null, // idle, sent, refused, waiting, thinking, speaking, stopped, done, failed, lost
  run: null, seq: -1, lost: 0, ended: false, speaks: true, note: "", seed: null, placed: null,
  total: 0, played: 0, buffered: 0, underruns: 0, starved: 0, target: 0,
  clickMs: null, byWords: false, firstMs: null, onsetMs: null, firstPcmMs: null, latencyMs: 0,
  offsetLowMs: null, offsetHighMs: Infinity,
  sound: "pcm", stages: {}, figures: {}, pool: {}, ids: [], pieces: {}, rate, again: false,
  recorded: false, complete: false, recipe: null, parts: [], pauses: [], // of a replay file, and what one is made of
  furthest: 0, // samples that reached the ear, wherever the listener is now
});
let live = blank(); // the reply that is shown; it makes room for the next one when that was accepted
let asked = null; // the question that was sent and is not accepted yet: {run, clickMs, byWords, seq, before}
let pcm = []; // every chunk of the reply, for replay and download
let opus = null; // what decodes the reply, where it comes compressed
let discard = true; // after Stop, until the next run begins
let clock = null;
let limits = null; // of the machine, once they are known
const BUSY = ["sent", "waiting", "thinking", "speaking"];

function complain(sentence) {
  document.dispatchEvent(new CustomEvent("problem", { detail: sentence }));
}

// A question was accepted: the reply before it makes room.
function begin({ run, clickMs, byWords, seq, recorded }) {
  player.reset();
  pace = 1;
  live = Object.assign(blank(), { run, clickMs, byWords, seq, recorded });
  element.classList.toggle("la-recorded", recorded);
  asked = null;
  pcm = [];
  opus = null;
  clock = null;
  skipped = { samples: 0, underruns: 0, starved: 0 };
  discard = false;
  captions.begin();
  scope.begin();
  $(".la-spoken").textContent = "";
  $(".la-hint").textContent = document.querySelector("#mode-notes [data-mode]:not([hidden])")?.dataset.hint ?? props.hint;
  complain("");
}

// The first word to a question: it was accepted, or it never will be.
function answered(message) {
  cut = "";
  asked.seq = Math.max(asked.seq, message.seq);
  if (message.now_s !== null) begin({ ...asked, seq: message.seq - 1 });
  else if (message.end) refused(message.state === "failed" ? message.note : "");
}

// A message of a reply, with its sound as an ArrayBuffer, or null.
function take(message, sound) {
  const now = performance.now();
  if (message.run === asked?.run) answered(message);
  if (discard && message.end && message.run === live.run) {
    Object.assign(live.pool, message.pool); // its blocks are free again
    announce();
  }
  if (discard || message.run !== live.run || message.seq <= live.seq) return;
  if (message.seq !== live.seq + 1) {
    live.lost += message.seq - live.seq - 1;
    console.warn(`live audio: ${live.lost} messages of this reply are missing`);
  }
  live.seq = message.seq;
  const chunk = sound && message.sound === "pcm" ? new Int16Array(sound) : null;
  if (chunk) player.push(chunk.slice()); // before anything else: it is waited for
  if (message.now_s !== null) {
    live.offsetLowMs = live.clickMs - 1000 * (message.stages.received ?? 0); // accepted so long after it was received
    live.offsetHighMs = Math.min(live.offsetHighMs, now - 1000 * message.now_s);
  }
  Object.assign(live.stages, message.stages);
  Object.assign(live.figures, message.figures);
  Object.assign(live.pool, message.pool);
  live.ids.push(...message.ids);
  Object.assign(live.pieces, message.pieces);
  live.parts = message.parts;
  live.pauses = message.pauses;
  live.recipe ??= message.recipe ?? null;
  limits = message.limits ?? limits;
  live.limits = limits;
  live.seed = message.seed;
  live.placed = message.placed ?? null;
  live.speaks = message.speaks;
  for (const [start, text] of message.text) captions.add(start, text);
  live.sound = message.sound ?? "pcm";
  element.classList.toggle("la-opus", live.sound === "opus" && live.speaks);
  if (chunk) takePcm(chunk, now);
  if (sound && message.sound === "opus") takeOpus(message.head, new Uint8Array(sound));
  if (message.end) finishAfter(opus, message);
  else if (live.total === 0) phase(message.stages.started === undefined ? "waiting" : "thinking");
  if (live.phase === "waiting") $(".la-status").textContent = `${SAYS.waiting} (${message.pool.waiting ?? 0} in line)`;
  announce();
}

const bytesOf = (base64) => Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));

// A decoder that belongs to a reply of before gives its samples to nobody.
function takeOpus(head, packets) {
  const mine = (opus ??= new OpusReply(rate, bytesOf(head), (chunk) => opus === mine && !discard && takeDecoded(chunk), () => opus === mine && cutOff()));
  mine.push(packetsOf(packets));
}

function takeDecoded(chunk) {
  player.push(chunk.slice());
  takePcm(chunk, performance.now());
}

// The last packet is filled up with silence, which is none of the reply.
function shorten(total) {
  while (live.total > total) {
    const last = pcm.pop();
    const kept = Math.max(0, last.length - (live.total - total));
    live.total -= last.length - kept;
    if (kept) pcm.push(last.slice(0, kept));
  }
}

async function finishAfter(decoding, message) {
  if (decoding) await decoding.end();
  if (message.run !== live.run || opus !== decoding || discard) return;
  if (decoding) shorten(Math.round(message.figures.audio_s * rate));
  finish(message);
  announce();
}

// Of what the player has already.
function takePcm(chunk, now) {
  live.firstPcmMs ??= now;
  live.total += chunk.length;
  pcm.push(chunk);
  scope.push(chunk);
  if (!captions.text) $(".la-hint").textContent = props.wordless;
  phase("speaking");
}

function finish(message) {
  live.ended = true;
  live.complete = ["done", "length"].includes(message.state);
  live.note = message.note || "";
  scope.end();
  player.end();
  if (!live.speaks) $(".la-spoken").textContent = captions.text; // a voice speaks for itself
  if (message.state === "failed") {
    phase("failed");
    complain(live.note);
  } else if (live.total === 0) phase(message.state === "stopped" ? "stopped" : "done");
}
