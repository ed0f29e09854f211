// Joins the Gradio component with player, captions and scope. `element`, `props` and `watch` come from gr.HTML.
// Other parts of the page follow along through the document's "liveaudio" events and window.liveAudio.

const $ = (selector) => element.querySelector(selector);
const rate = props.sample_rate;
const remote = /\.(gradio\.live|hf\.space)$/.test(location.hostname);
const captions = new Captions($(".la-text"));
const scope = new Scope($(".la-scope"), rate);
const player = new Player(rate, remote ? props.remote_prebuffer_ms : props.prebuffer_ms, hear, showSilence);
const root = (window.gradio_config?.root || "").replace(/\/$/, "");
const watching = new Watch(`${root}/healthz`, waits, cutOff);

const blank = () => ({
  phase: null, // idle, sent, refused, waiting, thinking, speaking, stopped, done, failed, lost
  run: null, seq: -1, lost: 0, ended: false, speaks: true, note: "", seed: null,
  total: 0, played: 0, buffered: 0, underruns: 0, starved: 0, target: 0,
  clickMs: null, firstMs: null, onsetMs: null, firstPcmMs: null, latencyMs: 0,
  offsetLowMs: null, offsetHighMs: Infinity,
  stages: {}, figures: {}, pool: {}, ids: [], pieces: {}, rate, again: false,
});
let live = blank();
let pcm = []; // every chunk of the reply, for replay and download
let discard = true; // after Stop, until the next run begins
let expected = -Infinity; // when somebody pressed something that will ask for a reply
let unwanted = false; // and Stop after it, before it had asked
let clock = null;
let cut = ""; // the newest reply and how much of it was heard, where it was not heard whole
const BUSY = ["sent", "waiting", "thinking", "speaking"];
const EXPECTED_MS = 1000; // the longest that a press may take to become a question

// ---- what the page calls

// A click or key press that asks for a reply: start sound inside the gesture and start the stopwatch. The value at
// `place` tells the server what was heard of the reply before, and the one behind it how this one is called.
// It resolves when the reply before has said its last word: of two at once, one message could replace the other's.
async function submit(values, place) {
  noteCut();
  player.unlock();
  begin();
  live.clickMs = performance.now();
  live.run = Array.from(crypto.getRandomValues(new Uint8Array(4)), (byte) => byte.toString(16).padStart(2, "0")).join("");
  [values[place], values[place + 1]] = [cut, live.run];
  phase("sent");
  if (unwanted) setTimeout(() => trigger("unwanted"));
  expected = -Infinity;
  unwanted = false;
  const before = open;
  open = new Open(live.run);
  if (before.going) {
    trigger("replaced");
    await before.giveUp();
  }
  return values;
}

let open = new Open(null);

// What the server has to know of a reply that another one replaces.
function told(values) {
  values[0] = cut;
  return values;
}

// A press was made that will call `submit` in a moment.
function expect() {
  expected = performance.now();
  unwanted = false;
}

function stop(values) {
  unwanted = performance.now() - expected < EXPECTED_MS;
  if (BUSY.includes(live.phase)) breakOff("stopped");
  return values;
}

function breakOff(name) {
  noteCut();
  freeze(false);
  player.reset();
  discard = true;
  live.buffered = 0;
  live.ended = true;
  phase(name);
}

// The same, telling the server at `place` what was heard.
function halt(values, place) {
  stop();
  values[place] = cut;
  return values;
}

function noteCut() {
  if (BUSY.includes(live.phase) && !live.again) cut = `${live.run}:${Math.ceil(heard())}`;
}

// The server would not even begin: Gradio shows the sentence, but tells its components nothing.
function refused() {
  if (live.seq >= 0 || live.phase !== "sent") return;
  open.close();
  phase("refused");
}
new PerformanceObserver((list) => {
  if (list.getEntries().some((entry) => entry.responseStatus >= 400 && entry.name.includes("/queue/join"))) refused();
}).observe({ type: "resource" });

// What is to come of the reply, as far as it is waited for: sound that has come is heard first.
function waits() {
  const sounding = live.buffered > 0 && (clock?.running || player.silent);
  if (!BUSY.includes(live.phase) || live.ended || sounding) return null;
  return live.seq < 0 || live.stages.accepted === undefined ? "first" : "more";
}

// The server is gone, or knows nothing of this reply any more.
function cutOff() {
  breakOff("lost");
  open.close();
  $(".la-lost").textContent = props.lost;
}

function begin() {
  player.reset();
  live = blank();
  pcm = [];
  clock = null;
  discard = false;
  captions.begin();
  scope.begin();
  $(".la-spoken").textContent = $(".la-lost").textContent = "";
  $(".la-hint").textContent = props.hint;
}

// ---- what the server says

function take(message) {
  const now = performance.now();
  if (message?.end && message.run === open.run) open.close();
  if (message?.run === live.run) watching.heard();
  if (message?.end && message.run === live.run && live.phase === "stopped") {
    Object.assign(live.pool, message.pool); // its blocks are free again
    announce();
  }
  if (discard || message?.run !== live.run || message.seq <= live.seq) return;
  if (live.seq < 0) cut = "";
  if (message.seq !== live.seq + 1) {
    live.lost += message.seq - live.seq - 1;
    console.warn(`live audio: ${live.lost} messages of this reply are missing`);
  }
  live.seq = message.seq;
  if (message.now_s !== null) {
    if (live.offsetLowMs === null) trigger("accepted");
    live.offsetLowMs = live.clickMs - 1000 * (message.stages.received ?? 0); // accepted so long after it was received
    live.offsetHighMs = Math.min(live.offsetHighMs, now - 1000 * message.now_s);
  }
  Object.assign(live.stages, message.stages);
  Object.assign(live.figures, message.figures);
  Object.assign(live.pool, message.pool);
  live.ids.push(...message.ids);
  Object.assign(live.pieces, message.pieces);
  live.seed = message.seed;
  live.speaks = message.speaks;
  for (const [start, text] of message.text) captions.add(start, text);
  if (message.pcm) takePcm(message.pcm, now);
  if (message.end) finish(message);
  else if (live.total === 0) phase(message.stages.started === undefined ? "waiting" : "thinking");
  if (live.phase === "waiting") $(".la-status").textContent = `${SAYS.waiting} (${message.pool.waiting ?? 0} in line)`;
  announce();
}

function takePcm(base64, now) {
  const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  const chunk = new Int16Array(bytes.buffer);
  player.push(chunk.slice()); // before anything else: it is waited for
  live.firstPcmMs ??= now;
  live.total += chunk.length;
  pcm.push(chunk);
  scope.push(chunk);
  if (!captions.text) $(".la-hint").textContent = props.wordless;
  phase("speaking");
}

function finish(message) {
  live.ended = true;
  live.note = message.note || "";
  scope.end();
  player.end();
  $(".la-spoken").textContent = captions.text;
  if (message.state === "failed") phase("failed");
  else if (live.total === 0) phase(message.state === "stopped" ? "stopped" : "done");
  if (live.offsetLowMs !== null) trigger("over");
}

// ---- what the sound card says

function hear(report) {
  if (report.first !== undefined) live.firstMs ??= player.toPageMs(report.first);
  else if (report.onset !== undefined) live.onsetMs ??= player.toPageMs(report.onset);
  else {
    const { state, played, buffered, underruns, starved, target } = report;
    Object.assign(live, { played, buffered, underruns, starved, target: (1000 * target) / rate });
    live.latencyMs = player.outputLatencyMs;
    if (state === "done" && live.ended && live.phase === "speaking") phase("done");
    clock = { played, at: performance.now(), running: state === "play" && !player.silent };
  }
  live.heardAfterMs = live.firstMs === null ? null : live.firstMs + player.outputLatencyMs - live.clickMs;
  announce();
}

// Samples that reached the ear by now.
function heard() {
  if (!clock || live.total === 0 || live.played === 0) return 0;
  const since = clock.running ? performance.now() - clock.at : 0;
  const lag = live.phase === "done" ? 0 : live.latencyMs;
  return Math.max(0, Math.min(live.total, clock.played + ((since - lag) * rate) / 1000));
}

function freeze(running) {
  clock = { played: heard() + (live.latencyMs * rate) / 1000, at: performance.now(), running };
}

// ---- what the visitor sees

const SAYS = {
  idle: "Ready", sent: "Sending", waiting: "Waiting for a place", thinking: "Thinking",
  speaking: "Speaking", stopped: "Stopped", done: "Finished", failed: "Failed", refused: "Not sent",
  lost: "Cut off",
};

function phase(name) {
  if (live.phase === name) return;
  live.phase = name;
  element.dataset.phase = document.body.dataset.livePhase = name;
  $(".la-status").textContent = SAYS[name];
  element.classList.remove("la-paused");
  if (player.silent) showSilence();
  $(".la-pause").disabled = !(name === "speaking" || (["done", "stopped", "lost"].includes(name) && live.total > 0));
  $(".la-save").disabled = live.total === 0;
  announce();
}

// Whether it is held, by the visitor or by the browser, which may take the sound away at any time.
function showSilence() {
  if (live.phase !== "speaking") return;
  freeze(!player.silent);
  element.classList.toggle("la-paused", player.silent);
  $(".la-status").textContent = player.silent ? "Paused" : SAYS.speaking;
}

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

const stamp = (samples) => {
  const seconds = samples / rate;
  return `${Math.floor(seconds / 60)}:${(seconds % 60).toFixed(1).padStart(4, "0")}`;
};

let shown = "";
setInterval(() => {
  const now = heard();
  const key = `${Math.round(now)} ${live.total} ${live.phase} ${captions.segments.length}`;
  if (key === shown) return;
  shown = key;
  const silent = !live.speaks || (live.ended && now >= live.total); // what is written after the sound is not heard
  captions.show(silent ? Infinity : now, live.total, rate, live.ended);
  scope.tick(now);
  $(".la-time").textContent = `${stamp(now)} / ${stamp(live.total)}`;
}, TICK_MS);

// ---- start

element.classList.toggle("la-plain", !player.exact);
watch("value", () => take(props.value));
window.liveAudio = { ready: true, submit, expect, stop, halt, told, player, get state() { return live; }, get heard() { return heard(); } };
phase("idle");
