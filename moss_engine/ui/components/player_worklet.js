// Plays int16 chunks without a gap, on the audio thread.
//
// Messages in:  {pcm: Int16Array} | {end: true} | {reset: epoch} | {prebuffer: ms} | {after: ms for which a reply waits} |
//               {held: whether nothing is to sound}
// Messages out: {state, played, buffered, underruns, starved, target, epoch}   about 20 times a second
//               {first: time, epoch}   when the first sample is handed over
// Counts are samples, times are seconds of the context's clock, `epoch` is that of the last reset.

const REPORT_SAMPLES = 1152;
const MARGIN = 1.25; // of the time by which the next reply may come later than the ones before
const SPARE_S = 0.04; // of sound that should be left when more comes: with less, the next reply may be too late

class LiveAudioRing extends AudioWorkletProcessor {
  constructor(options) {
    super();
    const { prebufferMs, maxPrebufferMs, maxWaitMs, fadeMs } = options.processorOptions;
    const samples = (ms) => Math.round((ms / 1000) * sampleRate);
    this.fade = samples(fadeMs);
    this.firstTarget = 0;
    this.wait(prebufferMs);
    this.maxTarget = samples(maxPrebufferMs);
    this.maxWait = samples(maxWaitMs);
    this.tail = null;
    this.epoch = 0;
    this.held = false;
    this.late = 0; // samples of time by which earlier replies came late, or would have with a little less luck
    this.opening = 0; // samples that came first of the reply before
    this.begin();
    this.port.onmessage = ({ data }) => this.receive(data);
  }

  begin() {
    this.queue = [];
    this.offset = 0; // samples of queue[0] already played
    this.buffered = 0;
    this.played = 0;
    this.underruns = 0;
    this.starved = 0; // silent samples inserted after the start
    this.target = this.firstTarget;
    this.after = 0;
    this.rampIn = 0;
    this.ended = false;
    this.state = "idle";
    this.sinceReport = 0;
    this.received = 0;
    this.since = 0; // seconds of the context's clock at which the first samples came
    this.first = 0; // samples that came first
    this.lateness = -Infinity; // samples of time by which the latest ones came too late for who heard the first at once
  }

  receive(message) {
    if (message.pcm) {
      if (this.state === "idle") [this.state, this.since, this.first] = ["fill", currentTime, message.pcm.length];
      else this.lateness = Math.max(this.lateness, this.waited() - this.received);
      this.received += message.pcm.length;
      this.queue.push(message.pcm);
      this.buffered += message.pcm.length;
    } else if (message.prebuffer) {
      this.wait(message.prebuffer);
    } else if (message.after) {
      this.after = Math.round((message.after / 1000) * sampleRate);
    } else if (message.end) {
      this.ended = true;
    } else if (message.held !== undefined) {
      if (message.held && !this.held) this.tail = this.fading();
      if (!message.held && this.held) this.rampIn = this.fade;
      this.held = message.held;
    } else if (message.reset) {
      this.leave();
      this.epoch = message.reset;
    }
  }

  // From the next reply on, sound begins when at least so much of it is there.
  wait(ms) {
    this.leastTarget = Math.max(Math.round((ms / 1000) * sampleRate), this.fade + 128);
    this.firstTarget = Math.max(this.firstTarget, this.leastTarget);
    if (this.state === "idle") this.target = this.firstTarget;
  }

  waited() {
    return (currentTime - this.since) * sampleRate;
  }

  // Whether a reply may begin to sound. Where the ones before came late, it waits as long as they would have needed to
  // be heard without a gap, or for twice that much sound behind what comes first; where others are made beside it, for
  // as long as they may hold it up, or for that much sound.
  enough() {
    if (this.buffered < this.target) return false;
    if (this.played > 0 || this.waited() >= Math.max(this.late, this.after)) return true;
    return this.buffered >= (this.opening || this.first) + Math.max(2 * this.late, this.after);
  }

  // Drop everything; what was sounding fades out instead of being cut. After a reply that starved, the next one starts
  // with the buffer that this one needed in the end; every one that did not, halves it again. So it is with the wait.
  leave() {
    this.firstTarget = this.underruns > 0 ? this.target : Math.max(this.leastTarget, this.firstTarget / 2);
    const needed = MARGIN * (this.lateness + SPARE_S * sampleRate);
    if (this.received > 0) [this.late, this.opening] = [Math.min(this.maxWait, Math.max(needed, this.late / 2)), this.first];
    const tail = this.fading();
    this.begin();
    this.tail = tail;
  }

  // What would sound next, fading; null where nothing sounds.
  fading() {
    if (this.state !== "play" || this.held) return null;
    const tail = new Float32Array(Math.min(this.fade, this.buffered, 128));
    this.peek(tail, tail.length);
    return tail.map((sample, i) => sample * (1 - (i + 1) / tail.length));
  }

  // The next `count` samples; where behind them the queue goes on.
  peek(out, count) {
    let [done, piece, offset] = [0, 0, this.offset];
    while (done < count) {
      const head = this.queue[piece];
      const n = Math.min(count - done, head.length - offset);
      for (let i = 0; i < n; i++) out[done + i] = head[offset + i] / 32768;
      done += n;
      offset += n;
      if (offset === head.length) [piece, offset] = [piece + 1, 0];
    }
    return [piece, offset];
  }

  take(out, count) {
    const [pieces, offset] = this.peek(out, count);
    this.queue.splice(0, pieces);
    this.offset = offset;
    this.buffered -= count;
  }

  play(out) {
    const count = Math.min(out.length, this.buffered);
    const starving = !this.ended && this.buffered - count < this.fade;
    this.take(out, count);
    if (this.played === 0) this.post({ first: currentTime });
    for (let i = 0; this.rampIn > 0 && i < count; i++, this.rampIn--) out[i] *= 1 - this.rampIn / this.fade;
    if (starving) {
      const from = Math.max(0, count - this.fade);
      for (let i = from; i < count; i++) out[i] *= (count - 1 - i) / (count - from);
      this.underruns += 1;
      this.target = Math.min(this.target * 2, this.maxTarget);
      this.rampIn = this.fade;
      this.state = "fill";
    }
    this.played += count;
    if (this.ended && this.buffered === 0) this.state = "done";
  }

  process(_inputs, outputs) {
    const out = outputs[0][0];
    if (this.tail) {
      out.set(this.tail);
      this.tail = null;
      return true;
    }
    if (this.held) return true;
    const before = this.state;
    if (this.state === "fill") {
      if (this.enough() || (this.ended && this.buffered > 0)) this.state = "play";
      else if (this.ended) this.state = "done";
      else if (this.played > 0) this.starved += out.length;
    } else if (this.state === "idle" && this.ended) {
      this.state = "done";
    }
    if (this.state === "play") this.play(out);
    this.sinceReport += out.length;
    const sounding = this.state === "fill" || this.state === "play";
    if (this.state !== before || (sounding && this.sinceReport >= REPORT_SAMPLES)) this.report();
    return true;
  }

  report() {
    this.sinceReport = 0;
    this.post({
      state: this.state,
      played: this.played,
      buffered: this.buffered,
      underruns: this.underruns,
      starved: this.starved,
      target: this.target,
    });
  }

  post(message) {
    this.port.postMessage({ ...message, epoch: this.epoch });
  }
}

registerProcessor("live-audio-ring", LiveAudioRing);
