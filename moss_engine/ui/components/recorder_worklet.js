// Microphone samples at the context's rate -> int16 at `rate` Hz, on the audio thread.
//
// Messages in:  "end": what is there of a block is wanted now; "close": nothing more is wanted, and the processor may go
// Messages out: {pcm: Int16Array, level, last}   BLOCK samples, fewer where they were asked for; `level` is the loudest
//               one, 0 to 1
//
// Resampled by a Hann-windowed sinc below both Nyquist rates, tabulated for PHASES positions between two input samples:
// for the usual rates these are all there are.

const BLOCK = 1024;
const PHASES = 320;
const ZEROS = 16;
const ROLL_OFF = 0.94;

class Microphone extends AudioWorkletProcessor {
  constructor({ processorOptions: { rate } }) {
    super();
    this.step = sampleRate / rate; // input samples of one output sample
    const cutoff = ROLL_OFF * Math.min(1, rate / sampleRate);
    this.reach = Math.ceil(ZEROS / cutoff);
    this.table = Array.from({ length: PHASES }, (_, phase) => this.makeTaps(phase / PHASES, cutoff));
    this.input = new Float32Array(this.reach); // silence before the first sample
    this.at = this.reach; // where the next output sample is centred in `input`
    this.block = new Int16Array(BLOCK);
    this.filled = 0;
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

  process([channels]) {
    if (this.closed || channels.length === 0) return !this.closed;
    const size = channels[0].length;
    const joined = new Float32Array(this.input.length + size);
    joined.set(this.input);
    for (const channel of channels) {
      for (let i = 0; i < size; i++) joined[this.input.length + i] += channel[i] / channels.length;
    }
    while (Math.floor(this.at) + this.reach + 1 < joined.length) {
      this.put(this.sampleAt(joined, this.at));
      this.at += this.step;
    }
    const used = Math.floor(this.at) - this.reach;
    this.input = joined.slice(used);
    this.at -= used;
    return true;
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

  put(sample) {
    const value = Math.max(-1, Math.min(1, sample));
    this.level = Math.max(this.level, Math.abs(value));
    this.block[this.filled++] = Math.round(value < 0 ? value * 32768 : value * 32767);
    if (this.filled === BLOCK) this.post(false);
  }

  post(last) {
    this.port.postMessage({ pcm: this.block.slice(0, this.filled), level: this.level, last });
    this.block = new Int16Array(BLOCK);
    this.filled = 0;
    this.level = 0;
  }
}

registerProcessor("microphone", Microphone);
