// The recorder: joins the component with microphone and server. The page's player is window.liveAudio, and its "liveaudio" events say what becomes of a question.
//
//   off -> opening -> recording -> sending -> off                       a press begins, a press sends
//   off -> opening -> listening <-> hearing                             hands-free, until it is switched off

import { BUSY, complain, loadWorklet, root, write } from "./common.js";
import { wavOf } from "./player.js";

// The microphone, as blocks of int16 at `rateHz`. It is open only while it is listened to.
const LAST_BLOCK_MS = 100; // the longest that the end of a recording is waited for
const MUTED_MS = 2000; // a shorter pause is no news: headsets mute themselves for a moment
// Without gain control, which makes an echo that is left in a pause as loud as the visitor's voice.
const WANTED = { echoCancellation: true, noiseSuppression: true, autoGainControl: false, channelCount: 1 };

const close = (stream) => stream.getTracks().forEach((track) => track.stop());

export class Capture {
  // `listener` gets (Int16Array, level, what the page played meanwhile or null), `muted` whether it is; `played` gives the
  // MediaStream of what the page plays.
  constructor(listener, ended, muted, played) {
    Object.assign(this, { listener, ended, muted, played, rateHz: null });
    this.turn = null; // of a recording, from its start to its stop
  }

  static get possible() {
    return Boolean(window.isSecureContext && navigator.mediaDevices?.getUserMedia);
  }

  get open() {
    return this.turn !== null;
  }

  // Rejects with the browser's DOMException where the visitor or the machine gives no microphone. One that was stopped, or
  // followed by another, before the browser gave what it needs leaves nothing open.
  async start() {
    const mine = (this.turn = {});
    if (navigator.audioSession) navigator.audioSession.type = "play-and-record";
    this.context ??= new AudioContext({ latencyHint: "interactive" });
    const played = this.played();
    this.loaded ??= loadWorklet(this.context, new URL("./recorder_worklet.js", import.meta.url)); // while the visitor is asked
    const stream = await navigator.mediaDevices.getUserMedia({ audio: WANTED });
    if (this.turn !== mine) return close(stream);
    this.stream = stream;
    stream.getTracks().forEach((track) => this.watch(track));
    await Promise.all([this.loaded, this.context.resume()]);
    if (this.turn !== mine) return close(stream);
    this.node = new AudioWorkletNode(this.context, "microphone", {
      numberOfInputs: 2, numberOfOutputs: 0, processorOptions: { rate: this.rateHz },
    });
    this.node.port.onmessage = ({ data }) => {
      if (this.turn !== mine) return;
      this.listener(data.pcm, data.level, data.played);
      if (data.last) this.finished();
    };
    this.source = this.context.createMediaStreamSource(stream);
    this.source.connect(this.node);
    this.copy = this.copyOf(played);
    this.copy?.connect(this.node, 0, 1);
  }

  // Null where the browser joins no graphs of two rates (Firefox): there, its own cancellation is all.
  copyOf(played) {
    try {
      return this.context.createMediaStreamSource(played);
    } catch (error) {
      if (error.name !== "NotSupportedError") throw error;
      return null;
    }
  }

  // A device may be unplugged, forbidden or switched off while it is listened to; `stop` is no news.
  watch(track) {
    const mine = () => this.open && this.stream?.getTracks().includes(track);
    track.onended = () => mine() && this.ended();
    track.onmute = () => setTimeout(() => mine() && track.muted && this.muted(true), MUTED_MS);
    track.onunmute = () => mine() && this.muted(false);
  }

  // Stop, but not before the last block was delivered, so that no word loses its end.
  async finish() {
    const mine = this.turn;
    await new Promise((resolve) => {
      this.finished = resolve;
      this.node.port.postMessage("end");
      setTimeout(resolve, LAST_BLOCK_MS);
    });
    if (this.turn === mine) this.stop();
  }

  stop() {
    this.turn = null;
    this.source?.disconnect();
    this.copy?.disconnect();
    this.node?.port.postMessage("close");
    if (this.stream) close(this.stream);
    this.context?.suspend();
    this.source = this.copy = this.stream = this.node = null;
    // While an iPhone records, it plays through the earpiece.
    if (navigator.audioSession) navigator.audioSession.type = "playback";
  }
}

// The way to the server: what the microphone hears goes through the page's door, files by a request of their own
const ATTEMPTS = 3;
const LOST = "The connection to the server was lost; check it and try again.";
const KEPT_TIMES = 512; // blocks of which is known when they ended
const UNHEARD_S = 0.6; // of an answer: who goes on over so much of it had not finished

export class Line {
  constructor(heard, failed, saying) {
    Object.assign(this, { heard, failed, saying, recording: 0, active: false, said: "" });
  }

  get door() {
    return window.liveAudio.door;
  }

  begin(handsFree) {
    this.recording += 1;
    Object.assign(this, { active: true, count: 0, ends: [] });
    this.door.send({ type: "input_audio_buffer.begin", hands_free: handsFree, recording: this.recording });
  }

  // int16 of the microphone, and as many of what the page played meanwhile, or null.
  push(pcm, played = null) {
    if (!this.active) return;
    const { state, heard } = window.liveAudio;
    const unheard = BUSY.includes(state.phase) && heard < UNHEARD_S * state.rate;
    const update = { answering: state.phase === "speaking", unheard, saying: this.saying(), played: played !== null };
    const said = JSON.stringify(update);
    if (said !== this.said) this.door.send({ type: "input_audio_buffer.update", ...update });
    this.said = said;
    this.ends[this.count % KEPT_TIMES] = performance.now();
    this.count += 1;
    this.door.sound(played ? Int16Array.of(...pcm, ...played) : pcm);
  }

  // When a block ended, on the page's clock.
  endOf(block) {
    return this.ends[block % KEPT_TIMES];
  }

  end() {
    this.door.send({ type: "input_audio_buffer.commit" });
  }

  // What is still on its way belongs to nobody any more.
  drop() {
    if (this.active) this.door.send({ type: "input_audio_buffer.clear" });
    this.active = false;
  }

  answered(answer) {
    if (answer.recording !== this.recording || !this.active) return;
    this.active = !(answer.last || answer.message);
    if (answer.message) this.failed(answer.message);
    else this.heard(answer, answer.last);
  }

  async sendFile(file) {
    for (let attempt = 1; ; attempt++) {
      let answer;
      try {
        answer = await fetch(`${root()}/gradio_api/hear`, { method: "POST", body: file });
      } catch {
        if (attempt === ATTEMPTS) throw new Error(LOST);
        await new Promise((resolve) => setTimeout(resolve, 200 * attempt));
        continue;
      }
      const message = await answer.json().catch(() => ({}));
      if (answer.ok && message.utterance) return message;
      throw new Error(message.detail || LOST);
    }
  }
}

// What phones and browsers record, and not every server reads: MP4 (M4A), WebM and bare AAC, by their first bytes. The browser
// makes a WAV of them; what it cannot decode goes as it is, and the server says what to send instead.
const DECODED = /^(....ftyp|.E\xdf\xa3|\xff[\xf0\xf1\xf8\xf9])/s;
const MOST_MB = 4; // minutes of speech, which decoded take fifty times the memory
async function asWav(file) {
  const head = new Uint8Array(await file.slice(0, 8).arrayBuffer());
  if (!DECODED.test(String.fromCharCode(...head))) return file;
  if (file.size > MOST_MB * 2 ** 20) throw new Error(`The file has more than ${MOST_MB} MB; send one of ${props.max_s} s of speech at most.`);
  const bytes = await file.arrayBuffer();
  const sound = await new OfflineAudioContext(1, 1, props.microphone_hz).decodeAudioData(bytes).catch(() => null);
  if (!sound) return file;
  const { duration, numberOfChannels, sampleRate } = sound;
  if (duration > props.max_s) throw new Error(`The recording lasts ${Math.ceil(duration)} s, the limit is ${props.max_s} s; send a shorter one.`);
  const channels = Array.from({ length: numberOfChannels }, (_, channel) => sound.getChannelData(channel));
  const mean = (i) => channels.reduce((sum, samples) => sum + samples[i], 0) / numberOfChannels;
  const pcm = Int16Array.from(channels[0], (_, i) => Math.max(-32768, Math.min(32767, Math.round(32768 * mean(i)))));
  return wavOf([pcm], sampleRate);
}

let element, props; // since it was mounted
const $ = (selector) => element.querySelector(selector);
const SPARE_S = 0.5; // before the longest recording that the server takes
const GONE = "The microphone was disconnected or is not allowed any more; connect it or allow it beside the address, then talk again.";
const MUTED = "The microphone is muted; switch it on at the device or in the browser.";

let state = "off";
let live = "idle"; // phase of the reply
let unanswered = false; // the newest question was refused, or its answer never came
let sentence = ""; // what went wrong, until something else is begun
let lastSaid = ""; // what the newest question was called
let begun = 0;
let seconds = 0; // that the microphone gave, whether or not the server has them
let words = ""; // what was understood so far
let held = false; // somebody may want to interrupt: the answer is silent until that is sure
let taker = null; // who wants the next recording, if it is no question
let gone = false; // the microphone died while this was said
let sentAt = null; // when the button was pressed to send, or the microphone died
let pauses = false; // whoever talks is silent, and may be done

const capture = new Capture((pcm, level, played) => {
  seconds += pcm.length / props.microphone_hz;
  element.style.setProperty("--rec-level", Math.min(1, level * 1.6).toFixed(2));
  line.push(pcm, played);
  if (state === "recording") (seconds < props.max_s - SPARE_S ? show : send)();
}, died, (muted) => (muted || sentence === MUTED) && note(muted ? MUTED : ""), () => window.liveAudio.player.stream);
const line = new Line(heard, failed, () => (held ? window.liveAudio.saying : "")); // an echo has its words

const handsFree = () => !taker && $(".rec-free input").checked;

async function start() {
  note("");
  gone = false;
  if (state !== "off") {
    capture.stop(); // hands-free is switched on in the middle of a recording
    line.drop();
  }
  pauses = false;
  if (BUSY.includes(live)) interrupt();
  seconds = 0;
  words = "";
  enter("opening");
  begun += 1;
  const mine = begun;
  line.begin(handsFree());
  try {
    await capture.start();
  } catch (error) {
    return begun === mine && failed(refusal(error));
  }
  if (begun === mine && state === "opening") enter(handsFree() ? "listening" : "recording");
}

const send = (ms = performance.now()) => (state === "recording" ? complete(ms) : quiet());

async function complete(ms = performance.now()) {
  sentAt = ms;
  enter("sending");
  const mine = begun;
  await capture.finish();
  if (begun === mine) line.end();
}

// Nothing more will come: what was said until then is a question, as if the button had been pressed.
function died() {
  if (state === "sending") return;
  if (taker || !["recording", "hearing"].includes(state)) return failed(GONE);
  $(".rec-free input").checked = false;
  gone = true;
  note(GONE);
  complete();
}

function quiet() {
  gone = false;
  if (held) hold(false);
  begun += 1;
  capture.stop();
  line.drop();
  taker = null;
  $(".rec-free input").checked = false; // the switch shows whether the microphone is open
  enter("off");
}

function failed(sentence) {
  note(gone ? GONE : sentence);
  quiet();
}

function refusal(error) {
  if (error.name === "NotAllowedError") {
    return "The browser did not give the microphone; allow it beside the address, or type.";
  }
  if (error.name === "NotFoundError") return "No microphone was found; connect one, or type.";
  return "The microphone could not be opened; close other programs that use it, or type.";
}

function heard(answer, last) {
  words = answer.text;
  pauses = answer.pauses;
  const over = answer.talking || answer.begins; // an answer, perhaps
  if (state === "listening" && over && !held && BUSY.includes(live)) hold(true);
  if (state === "listening" && answer.talking) {
    enter("hearing");
    if (handsFree()) window.liveAudio.prepare();
  } else if (state === "hearing" && !answer.talking) enter("listening");
  if (held && (answer.utterance || (answer.talking && answer.sure))) interrupt();
  if (held && !over) hold(false);
  if (answer.utterance) {
    say(answer.utterance, handsFree() ? line.endOf(answer.block) - 1000 * answer.silent_s : sentAt);
  }
  if (last) {
    gone &&= Boolean(answer.utterance);
    enter("off");
  } else show();
}

// What was said, up to a time of the page's clock.
function say(utterance, ms) {
  if (taker) {
    const take = taker;
    taker = null;
    return take(utterance);
  }
  lastSaid = utterance;
  window.liveAudio.askSpoken(utterance, ms, handsFree());
}

// Silence at the first sound of a voice, or, as it was a cough, a murmur or an echo, no longer.
function hold(silent) {
  held = silent;
  window.liveAudio.player.hold(silent);
}

// Somebody talks while the page answers: silence at once.
function interrupt() {
  window.liveAudio.stop();
  if (held) hold(false);
}

// The next recording is for `take`, and asks nothing.
function sample(take) {
  quiet();
  taker = take;
  start();
}

async function sendFile(file, take = null) {
  if (!file) return;
  quiet();
  note("");
  taker = take;
  enter("sending");
  const [mine, chosenAt] = [begun, performance.now()];
  try {
    const answer = await line.sendFile(await asWav(file));
    if (begun !== mine) return;
    say(answer.utterance, chosenAt);
    enter("off");
  } catch (error) {
    if (begun === mine) failed(error.message);
  }
}

const SAYS = {
  off: "Press and talk", opening: "Waiting for the microphone", recording: "Recording", sending: "Sending",
  listening: "Listening", hearing: "Hearing you", pausing: "Waiting for more", sent: "Thinking", waiting: "Waiting for a place",
  thinking: "Thinking", speaking: "Answering", sampling: "Recording your voice",
};
const HINTS = {
  off: "hold it while you talk, or press once to begin and once to send", recording: "let go or press again to send", listening: "ask whenever you like",
  speaking: "press to interrupt", sampling: "for the settings; no question is asked",
};

// Where nothing is being said, the reply is what matters. A recording for somebody else is no question.
function shown() {
  if (taker) return "sampling";
  return ["off", "listening"].includes(state) && BUSY.includes(live) ? live : state;
}

function enter(next) {
  state = next;
  if (next === "off" || next === "listening") element.style.setProperty("--rec-level", 0);
  show();
}

function show() {
  const name = shown();
  const open = ["opening", "recording", "listening", "hearing"].includes(state);
  element.dataset.state = name;
  element.classList.toggle("rec-open", open);
  write($(".rec-state"), SAYS[name === "hearing" && pauses ? "pausing" : name] + (name === "recording" ? ` ${seconds.toFixed(1)} s` : ""));
  let hint = HINTS[name] || "";
  if (open && handsFree() && BUSY.includes(name)) hint = "talk to interrupt";
  if (words && ["recording", "hearing", "sending"].includes(name)) hint = words;
  if ($(".rec-free input").disabled && (name === "off" || $(".rec-talk").disabled)) hint = "";
  write($(".rec-hint"), hint);
  const talk = $(".rec-talk");
  talk.setAttribute("aria-pressed", open && !taker);
  talk.setAttribute("aria-label", taker ? "Cancel the recording of your voice" : !open ? "Talk" : handsFree() ? "Stop listening" : "Send what you said");
  document.dispatchEvent(new CustomEvent("recorder", { detail: { state, seconds, sentence } }));
  $(".rec-again").hidden = !(lastSaid && state === "off" && unanswered);
}

function note(text) {
  sentence = text;
  complain(text);
}

// A press begins and a press sends; whoever holds the button down talks as long as it is held.
const HELD_MS = 400;
const DOUBLE_MS = 300; // a double click is one press
let begunAt = 0;
let downAt = null; // since when the press that began a recording is held
function press({ timeStamp }) {
  if (state === "off") {
    begunAt = timeStamp;
    start();
  } else if (timeStamp - begunAt < DOUBLE_MS) return;
  else if (state === "recording" && !taker) send(timeStamp);
  else quiet();
}
function lower(event) {
  downAt = state === "off" ? event.timeStamp : null;
  press(event);
}
function lift({ timeStamp }) {
  if (downAt !== null && timeStamp - downAt >= HELD_MS && state === "recording" && !taker) send(timeStamp);
  downAt = null;
}

const inUse = () => document.body.dataset.input === "speech";

export function mountRecorder(place, told) {
  [element, props] = [place, told];
  capture.rateHz = props.microphone_hz;
  const talkButton = $(".rec-talk");
  talkButton.addEventListener("pointerdown", (event) => {
    if (event.button !== 0 || talkButton.disabled) return;
    talkButton.setPointerCapture(event.pointerId);
    lower(event);
  });
  talkButton.addEventListener("pointerup", lift);
  talkButton.addEventListener("pointercancel", () => (downAt = null));
  talkButton.addEventListener("click", (event) => event.detail === 0 && press(event)); // by a key, or another program
  $(".rec-free input").addEventListener("change", () => (handsFree() ? start() : quiet()));
  $(".rec-file").addEventListener("click", () => $(".rec-input").click());
  $(".rec-input").addEventListener("change", ({ target }) => {
    sendFile(target.files[0]);
    target.value = "";
  });
  $(".rec-again").addEventListener("click", ({ timeStamp }) => say(lastSaid, timeStamp));
  document.addEventListener("keydown", (event) => {
    if (event.isComposing || document.querySelector("dialog[open], :popover-open")) return;
    if (event.key === "Escape" && state !== "off") quiet();
    if (event.key !== " " || !inUse() || !Capture.possible) return;
    if (event.target.closest("input:not([type=radio]), textarea, select, button:not(.rec-talk), summary, a, [contenteditable]")) return;
    event.preventDefault(); // also while it is held, as the page would scroll, and the button be pressed when it is let go
    if (!event.repeat) lower(event);
  });
  document.addEventListener("keyup", (event) => {
    if (event.key !== " ") return;
    if (event.target === talkButton) event.preventDefault();
    lift(event);
  });
  document.addEventListener("click", ({ target }) => target.closest?.("#stop") && quiet());
  document.addEventListener("drop", (event) => inUse() && sendFile(event.dataTransfer.files[0]));
  for (const name of ["heard", "failed"]) document.addEventListener(`input_audio_buffer.${name}`, ({ detail }) => line.answered(detail));
  // The server knows nothing of what was being said: who talks hands-free is listened to again, what was recorded is lost.
  document.addEventListener("anew", () => line.active && (handsFree() ? start() : failed(LOST)));
  document.addEventListener("modechange", () => !inUse() && quiet());
  document.addEventListener("liveaudio", ({ detail }) => {
    if (gone && state === "off" && ["waiting", "thinking", "speaking"].includes(detail.phase)) {
      gone = false;
      note(GONE); // which made room for the question that was accepted
    }
    const missing = detail.refused || ["failed", "lost"].includes(detail.phase);
    if (missing) gone = false;
    if (live === detail.phase && unanswered === missing) return;
    live = detail.phase;
    unanswered = missing;
    show();
  });
  if (!Capture.possible) {
    $(".rec-talk").disabled = $(".rec-free input").disabled = true;
    $(".rec-why").textContent = "Browsers give a microphone only to pages on https or localhost; open this page there, or type.";
  } else if (props.no_hands_free) {
    $(".rec-free input").disabled = true;
    $(".rec-why").textContent = props.no_hands_free;
  }
  window.recorder = { get state() { return state; }, get shown() { return shown(); },
    get seconds() { return seconds; }, line, capture, possible: Capture.possible, send, sample,
    sampleFile: sendFile };
  show();
}
