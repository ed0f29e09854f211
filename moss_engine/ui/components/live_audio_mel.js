// Mel columns of int16 speech as it arrives: the model's own picture of sound (80 ms Hann windows every 20 ms,
// 80 Slaney bands from 0 to 8 kHz), in decibels relative to a full-scale sine, one byte a band.

const MEL = { bands: 80, maxHz: 8000, windowS: 0.08, hopS: 0.02, floorDb: -84, topDb: -20 };

function hzToMel(hz) {
  return hz < 1000 ? (3 * hz) / 200 : 15 + (27 * Math.log(hz / 1000)) / Math.log(6.4);
}

function melToHz(mel) {
  return mel < 15 ? (200 * mel) / 3 : 1000 * Math.exp((Math.log(6.4) * (mel - 15)) / 27);
}

class MelMaker {
  constructor(rate) {
    this.window = Math.round(MEL.windowS * rate);
    this.hop = Math.round(MEL.hopS * rate);
    this.size = 1;
    while (this.size < this.window) this.size *= 2;
    const { window, size } = this;
    this.hann = Float32Array.from({ length: window }, (_, i) => 0.5 - 0.5 * Math.cos((2 * Math.PI * i) / window));
    this.cos = Float32Array.from({ length: size / 2 }, (_, i) => Math.cos((2 * Math.PI * i) / size));
    this.sin = Float32Array.from({ length: size / 2 }, (_, i) => Math.sin((2 * Math.PI * i) / size));
    this.re = new Float32Array(size);
    this.im = new Float32Array(size);
    this.filters = this.makeFilters(rate);
    this.begin();
  }

  // Half a window of silence before the reply centres column i on sample i * hop.
  begin() {
    this.pending = new Float32Array(this.window / 2);
  }

  makeFilters(rate) {
    const top = hzToMel(Math.min(MEL.maxHz, rate / 2));
    const edge = (k) => (melToHz((top * k) / (MEL.bands + 1)) * this.size) / rate;
    return Array.from({ length: MEL.bands }, (_, band) => {
      const [low, mid, high] = [edge(band), edge(band + 1), edge(band + 2)];
      const bins = [];
      for (let bin = Math.ceil(low); bin < high; bin++) {
        bins.push([bin, bin < mid ? (bin - low) / (mid - low) : (high - bin) / (high - mid)]);
      }
      return bins.length > 0 ? bins : [[Math.round(mid), 1]];
    });
  }

  // Int16Array -> list of Uint8Array(80), every column that is complete now.
  push(pcm) {
    const joined = new Float32Array(this.pending.length + pcm.length);
    joined.set(this.pending);
    for (let i = 0; i < pcm.length; i++) joined[this.pending.length + i] = pcm[i] / 32768;
    const columns = [];
    let start = 0;
    for (; start + this.window <= joined.length; start += this.hop) columns.push(this.column(joined, start));
    this.pending = joined.subarray(start);
    return columns;
  }

  column(samples, start) {
    this.re.fill(0);
    this.im.fill(0);
    for (let i = 0; i < this.window; i++) this.re[i] = samples[start + i] * this.hann[i];
    this.transform();
    const full = this.window / 4; // magnitude of a full-scale sine under the Hann window
    return Uint8Array.from(this.filters, (bins) => {
      let peak = 0;
      for (const [bin, weight] of bins) peak = Math.max(peak, weight * Math.hypot(this.re[bin], this.im[bin]));
      const db = 20 * Math.log10(peak / full + 1e-9);
      return Math.max(0, Math.min(255, (255 * (db - MEL.floorDb)) / (MEL.topDb - MEL.floorDb)));
    });
  }

  // In-place radix-2 Fourier transform of re + i im.
  transform() {
    const { re, im, size } = this;
    for (let i = 1, j = 0; i < size; i++) {
      let bit = size >> 1;
      for (; j & bit; bit >>= 1) j ^= bit;
      j ^= bit;
      if (i < j) {
        [re[i], re[j]] = [re[j], re[i]];
        [im[i], im[j]] = [im[j], im[i]];
      }
    }
    for (let span = 2; span <= size; span *= 2) {
      const half = span / 2;
      const stride = size / span;
      for (let base = 0; base < size; base += span) {
        for (let k = 0; k < half; k++) {
          const wr = this.cos[k * stride];
          const wi = -this.sin[k * stride];
          const a = base + k;
          const b = a + half;
          const tr = re[b] * wr - im[b] * wi;
          const ti = re[b] * wi + im[b] * wr;
          re[b] = re[a] - tr;
          im[b] = im[a] - ti;
          re[a] += tr;
          im[a] += ti;
        }
      }
    }
  }
}
