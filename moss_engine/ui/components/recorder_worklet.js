// Microphone samples at the context's rate -> int16 at `rate` Hz, on the audio thread; and beside them what the page plays.
//
// Messages in:  "end": what is there of a block is wanted now; "close": nothing more is wanted, and the processor may go
// Messages out: {pcm: Int16Array, played, level, last}   BLOCK samples, fewer where they were asked for; `level` is the
//               loudest one, 0 to 1; `played` are as many of the second input, null where it is silent for ECHO_S
//
// Resampled by a Hann-windowed sinc below both Nyquist rates, tabulated for PHASES positions between two input samples:
// for the usual rates these are all there are.

const BLOCK = 512;
const PHASES = 320;
const ZEROS = 16;
const ROLL_OFF = 0.94;
const ECHO_S = 0.6;

class Microphone extends AudioWorkletProcessor {
  constructor({ processorOptions: { rate } }) {
    super();
    this.step = sampleRate / rate; // input samples of one output sample
    const cutoff = ROLL_OFF * Math.min(1, rate / sampleRate);
    this.reach = Math.ceil(ZEROS / cutoff);
    this.table = Array.from({ length: PHASES }, (_, phase) => this.makeTaps(phase / PHASES, cutoff));
    this.inputs = [0, 1].map(() => new Float32Array(this.reach)); // microphone and page: silence before the first sample
    this.at = this.reach; // where the next output sample is centred in them
    this.blocks = [0, 1].map(() => new Int16Array(BLOCK));
    this.filled = 0;
    this.quiet = Infinity; // samples since the page played something
    this.level = 0;
    this.closed = false;
    this.port.onmessage = ({ data }) => {
      if (data === "close") this.closed = true;
      else this.post(true);
    };
  }

  // Weights of the input samples from -reach + 1 to reach around a point that lies `offset` behind one.
  makeTaps(offset, cutoff) {
    return Float32Array.from({ length: 2 * this.reach }, (_, i) => {
      const t = (i - this.reach + 1 - offset) * cutoff;
      if (Math.abs(t) >= ZEROS) return 0;
      const sinc = t === 0 ? 1 : Math.sin(Math.PI * t) / (Math.PI * t);
      return cutoff * sinc * Math.cos((Math.PI * t) / (2 * ZEROS)) ** 2;
    });
  }

  process([heard, played]) {
    if (this.closed || heard.length === 0) return !this.closed;
    const size = heard[0].length;
    const joined = [heard, played].map((channels, input) => this.join(this.inputs[input], channels, size));
    while (Math.floor(this.at) + this.reach + 1 < joined[0].length) {
      this.put(joined.map((samples) => this.sampleAt(samples, this.at)));
      this.at += this.step;
    }
    const used = Math.floor(this.at) - this.reach;
    this.inputs = joined.map((samples) => samples.slice(used));
    this.at -= used;
    return true;
  }

  // Samples that are left, and `size` new ones of all channels together; none are silence.
  join(left, channels, size) {
    const joined = new Float32Array(left.length + size);
    joined.set(left);
    for (const channel of channels) {
      for (let i = 0; i < size; i++) joined[left.length + i] += channel[i] / channels.length;
    }
    return joined;
  }

  sampleAt(samples, at) {
    let whole = Math.floor(at);
    let phase = Math.round((at - whole) * PHASES);
    if (phase === PHASES) [whole, phase] = [whole + 1, 0];
    const taps = this.table[phase];
    const first = whole - this.reach + 1;
    let sum = 0;
    for (let i = 0; i < taps.length; i++) sum += taps[i] * samples[first + i];
    return sum;
  }

  put(samples) {
    for (const [input, sample] of samples.entries()) {
      const value = Math.max(-1, Math.min(1, sample));
      this.blocks[input][this.filled] = Math.round(value < 0 ? value * 32768 : value * 32767);
    }
    this.level = Math.max(this.level, Math.min(1, Math.abs(samples[0])));
    this.quiet = samples[1] === 0 ? this.quiet + 1 : 0;
    this.filled += 1;
    if (this.filled === BLOCK) this.post(false);
  }

  post(last) {
    const [pcm, played] = this.blocks.map((block) => block.slice(0, this.filled));
    const sounds = this.quiet < ECHO_S * sampleRate / this.step;
    this.port.postMessage({ pcm, played: sounds ? played : null, level: this.level, last });
    this.filled = 0;
    this.level = 0;
  }
}

registerProcessor("microphone", Microphone);
