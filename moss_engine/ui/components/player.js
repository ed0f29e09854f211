// From int16 chunks to the loudspeaker. A worklet's ring buffer plays them where the page is a secure context;
// elsewhere AudioBufferSourceNodes are scheduled end to end. Both report the same figures.

import { loadWorklet } from "./common.js";

const FADE_MS = 4;
const MAX_PREBUFFER_MS = 400;
const QUICK_MS = 150; // to a first sound, where nobody else is spoken to
const LATE_AGAIN = 1.5;
const OTHER_MS = 60; // by which the next sound may be later for each reply that is made beside
const MAX_WAIT_MS = 1500; // for a reply of a machine that has been too slow
const SCHEDULE_AHEAD_S = 0.05;

class WorkletSink {
  constructor(context, output, prebufferMs, listener) {
    this.waiting = [];
    this.ready = loadWorklet(context, new URL("./player_worklet.js", import.meta.url)).then(() => {
      this.node = new AudioWorkletNode(context, "live-audio-ring", {
        numberOfInputs: 0,
        outputChannelCount: [1],
        processorOptions: { prebufferMs, maxPrebufferMs: MAX_PREBUFFER_MS, maxWaitMs: MAX_WAIT_MS, fadeMs: FADE_MS },
      });
      this.node.port.onmessage = ({ data }) => listener(data);
      this.node.connect(output);
      for (const message of this.waiting) this.send(message);
    });
  }

  send(message) {
    if (this.node) this.node.port.postMessage(message, message.pcm ? [message.pcm.buffer] : []);
    else this.waiting.push(message);
  }
}

class ScheduledSink {
  constructor(context, output, prebufferMs, listener) {
    Object.assign(this, { context, output, ready: Promise.resolve(), epoch: 0 });
    this.listener = (message) => listener({ ...message, epoch: this.epoch });
    this.lead = Math.max(SCHEDULE_AHEAD_S, prebufferMs / 1000);
    this.begin();
    setInterval(() => this.report(), 50);
  }

  begin() {
    this.pieces = []; // {node, start, samples}; starts are whole samples of the context's clock, so nothing is resampled
    this.next = 0;
    this.underruns = 0;
    this.starved = 0;
    this.ended = false;
    this.state = "idle";
  }

  send({ pcm, end, reset }) {
    if (pcm) this.schedule(pcm);
    else if (end) this.ended = true;
    else if (reset) {
      for (const piece of this.pieces) piece.node.stop();
      this.begin();
      this.epoch = reset;
    }
  }

  schedule(pcm) {
    const { context } = this;
    const buffer = context.createBuffer(1, pcm.length, context.sampleRate);
    buffer.copyToChannel(Float32Array.from(pcm, (sample) => sample / 32768), 0);
    const node = new AudioBufferSourceNode(context, { buffer });
    node.connect(this.output);
    const rate = context.sampleRate;
    const earliest = Math.ceil((context.currentTime + this.lead) * rate);
    if (this.pieces.length === 0) {
      this.next = earliest;
      this.listener({ first: this.next / rate });
    } else if (this.next < context.currentTime * rate) {
      this.underruns += 1;
      this.starved += earliest - this.next;
      this.next = earliest;
    }
    node.start(this.next / rate);
    this.pieces.push({ node, start: this.next, samples: pcm.length });
    this.next += pcm.length;
    this.state = "play";
  }

  report() {
    if (this.state === "idle" || this.state === "done") return;
    const { currentTime: time, sampleRate } = this.context;
    const heard = (piece) => Math.max(0, Math.min(piece.samples, Math.round(time * sampleRate) - piece.start));
    const played = this.pieces.reduce((sum, piece) => sum + heard(piece), 0);
    const total = this.pieces.reduce((sum, piece) => sum + piece.samples, 0);
    if (this.ended && played >= total) this.state = "done";
    const { state, underruns, starved } = this;
    this.listener({ state, played, buffered: total - played, underruns, starved, target: this.lead * sampleRate });
  }
}

export class Player {
  // `changed` is called when the browser gives sound or takes it away.
  constructor(rate, prebufferMs, listener, changed) {
    Object.assign(this, { rate, prebufferMs, changed, volume: 1, epoch: 0 });
    // What is still on its way from before a reset is nobody's any more.
    this.listener = (message) => message.epoch === this.epoch && listener(message);
    this.exact = window.isSecureContext; // elsewhere browsers offer no AudioWorklet
  }

  // Must run inside a click or key press the first time: browsers start sound only there.
  unlock() {
    if (!this.context) {
      if (navigator.audioSession) navigator.audioSession.type = "playback"; // else the iPhone's ringer switch mutes us
      this.context = new AudioContext({ sampleRate: this.rate, latencyHint: "interactive" });
      this.context.onstatechange = this.changed;
      this.gain = new GainNode(this.context, { gain: this.volume });
      this.gain.connect(this.context.destination);
      const Sink = this.exact ? WorkletSink : ScheduledSink;
      this.sink = new Sink(this.context, this.gain, this.prebufferMs, this.listener);
    }
    if (this.context.state !== "running" && !this.paused) this.context.resume();
    return this.sink.ready;
  }

  push(pcm) {
    this.unlock();
    this.sink.send({ pcm });
  }

  end() {
    this.sink?.send({ end: true });
  }

  // Sound begins when so much of a reply is there; where it is scheduled, that is fixed.
  wait(ms) {
    this.sink?.send({ prebuffer: ms ?? this.prebufferMs });
  }

  // A server that needed so long for a first sound has much to do, and the next one may be late, too: sound begins when that is
  // bridged. Others, who may have come after it, are waited for.
  expect(firstSoundMs, others) {
    const lateMs = LATE_AGAIN * ((firstSoundMs ?? 0) - QUICK_MS);
    if (lateMs > 0) this.wait(Math.min(MAX_PREBUFFER_MS, this.prebufferMs + lateMs));
    if (others > 0) this.sink?.send({ after: Math.min(MAX_PREBUFFER_MS, OTHER_MS * others) });
  }

  reset() {
    if (this.sink) this.sink.send({ reset: ++this.epoch });
    if (this.paused) this.resume();
  }

  pause() {
    this.paused = true;
    this.context?.suspend();
  }

  resume() {
    this.paused = false;
    this.context?.resume();
  }

  // Silence at once, or go on, while the graph runs on: for who listens to both sides, it keeps its clock.
  hold(held) {
    this.held = held;
    this.sink?.send({ held });
    this.changed();
  }

  // What is given to the loudspeaker; must run where `unlock` may.
  get stream() {
    this.unlock();
    this.copy ??= this.gain.connect(new MediaStreamAudioDestinationNode(this.context, { channelCount: 1 }));
    return this.copy.stream;
  }

  // Nothing can be heard now: it is held, or the browser gives no sound.
  get silent() {
    return Boolean(this.held || this.paused || (this.context && this.context.state !== "running"));
  }

  setVolume(volume) {
    this.volume = volume;
    this.gain?.gain.setTargetAtTime(volume, this.context.currentTime, 0.015);
  }

  // Milliseconds from the graph to the loudspeaker, as far as the browser knows.
  get outputLatencyMs() {
    return 1000 * (this.context?.outputLatency || this.context?.baseLatency || 0);
  }

  // A time of the context's clock on performance.now()'s.
  toPageMs(contextS) {
    return performance.now() - 1000 * (this.context.currentTime - contextS);
  }
}

// The same chunks as a WAV file.
export function wavOf(pcm, rate) {
  const samples = pcm.reduce((sum, chunk) => sum + chunk.length, 0);
  const head = new DataView(new ArrayBuffer(44));
  const word = (at, text) => [...text].forEach((letter, i) => head.setUint8(at + i, letter.charCodeAt(0)));
  word(0, "RIFF"); head.setUint32(4, 36 + 2 * samples, true); word(8, "WAVEfmt ");
  head.setUint32(16, 16, true); head.setUint16(20, 1, true); head.setUint16(22, 1, true);
  head.setUint32(24, rate, true); head.setUint32(28, 2 * rate, true);
  head.setUint16(32, 2, true); head.setUint16(34, 16, true);
  word(36, "data"); head.setUint32(40, 2 * samples, true);
  return new Blob([head, ...pcm], { type: "audio/wav" });
}
