// The stage: captions, and below them waveform and mel, in step with the ear.

import { spelledOn } from "./common.js";

// Captions in step with the sound. Words that were made but not yet heard are pale, so the lead of the model over the
// ear is visible.

const SAID_S = 6; // of a reply, that may still be on its way through room, microphone and recogniser
const NEXT_S = 1;
// With the space before them, and the last one with that behind it. Chinese writes none: every sign is one, with the
// punctuation behind it.
const WORDS = /\s*(?:\p{Script=Han}\p{P}*|[^\s\p{Script=Han}]+)\s*$|\s*(?:\p{Script=Han}\p{P}*|[^\s\p{Script=Han}]+)/gu;

export class Captions {
  constructor(element) {
    this.element = element;
    this.begin();
  }

  begin() {
    this.segments = []; // {start, words: [{element, at: 0..1 of the segment}], text}
    this.element.replaceChildren();
  }

  get text() {
    return this.segments.map((segment) => segment.text).join("");
  }

  // Text deltas with the same start sample are one segment: they are spoken together from there on.
  add(start, text) {
    let segment = this.segments.at(-1);
    if (!segment || segment.start !== start) {
      segment = { start, text: "", element: document.createElement("span"), words: [] };
      this.segments.push(segment);
      this.element.append(segment.element);
    }
    segment.text += text;
    const pieces = segment.text.match(WORDS) || [];
    let before = this.segments.at(-2)?.words.at(-1)?.element.textContent;
    let letters = 0;
    segment.words = pieces.map((piece, index) => {
      const element = segment.words[index]?.element || document.createElement("span");
      const word = spelledOn(before, piece);
      if (element.textContent !== word) element.textContent = word;
      before = piece;
      const at = letters / segment.text.length;
      letters += piece.length;
      return { element, at };
    });
    segment.element.replaceChildren(...segment.words.map((word) => word.element));
  }

  // Where every word begins, in samples; `total` is the reply's length so far.
  *times(total, rate, ended) {
    for (const [index, segment] of this.segments.entries()) {
      const guess = segment.start + segment.text.length * 0.065 * rate;
      const next = this.segments[index + 1]?.start ?? (ended ? total : Math.max(total, guess));
      for (const word of segment.words) yield [word.element, segment.start + word.at * (next - segment.start)];
    }
  }

  // The same of a reply that is whole, with where they end, in seconds; what no space parts is one word, up to the end of
  // a Chinese sentence.
  timed(total, rate) {
    const words = [];
    for (const [{ textContent: text }, at] of this.times(total, rate, true)) {
      const [last, begins] = [words.at(-1), Math.round((1000 * at) / rate) / 1000];
      if (last) last[2] = begins;
      if (!last || /^\s/.test(text) || /[\s。！？]$/.test(last[0])) words.push([text, begins, begins]);
      else last[0] += text;
    }
    if (words.length > 0) words.at(-1)[2] = total / rate;
    return words.map(([text, ...seconds]) => [text.trim(), ...seconds]);
  }

  // The words that were said last, and the next ones, as where they begin is guessed.
  around(heard, total, rate, ended) {
    const near = ([, at]) => at > heard - SAID_S * rate && at < heard + NEXT_S * rate;
    return [...this.times(total, rate, ended)].filter(near).map(([element]) => element.textContent).join("");
  }

  // Mark every word whose sound began before `heard` samples.
  show(heard, total, rate, ended) {
    let current = null;
    for (const [element, at] of this.times(total, rate, ended)) {
      element.classList.toggle("said", heard > at);
      if (heard > at) current = element;
    }
    if (current && current !== this.current) this.follow(current);
    this.current = current;
  }

  // Keep the line of the current word in sight, with the one before it above.
  follow(word) {
    const box = this.element.parentElement;
    const height = parseFloat(getComputedStyle(box).lineHeight);
    const line = Math.floor((word.offsetTop + 1) / height);
    const [first, shown] = [Math.round(box.scrollTop / height), Math.round(box.clientHeight / height)];
    if (line < first || line > first + shown - 2) box.scrollTo({ top: Math.max(0, line - 1) * height });
  }
}

// Mel columns of int16 speech as it arrives: the model's own picture of sound (80 ms Hann windows every 20 ms,
// 80 Slaney bands from 0 to 8 kHz), in decibels relative to a full-scale sine, one byte a band.

export const MEL = { bands: 80, maxHz: 8000, windowS: 0.08, hopS: 0.02, floorDb: -84, topDb: -20 };

function hzToMel(hz) {
  return hz < 1000 ? (3 * hz) / 200 : 15 + (27 * Math.log(hz / 1000)) / Math.log(6.4);
}

function melToHz(mel) {
  return mel < 15 ? (200 * mel) / 3 : 1000 * Math.exp((Math.log(6.4) * (mel - 15)) / 27);
}

export class MelMaker {
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

// Waveform over mel of the reply. What was made but not yet heard is pale, as in the captions.

const SPANS_S = [8, 16, 32]; // visible seconds; while it is being made, a longer reply turns pages of the last size
const TICKS_S = [0.5, 1, 2, 4, 5, 10, 15, 30, 60, 120, 300]; // between two numbers of the axis
export const TICK_MS = 100;
const GUTTER_PX = 44; // at the right, for the frequencies: nothing is painted under them
const WAVE_TOP = 0.6; // the sample value at the edge of the waveform: speech seldom is louder

export class Scope {
  constructor(element, rate) {
    const [canvas, axes] = element.querySelectorAll("canvas"); // the third one is the visitor's own voice
    Object.assign(this, { element, rate, canvas, axes });
    this.playhead = element.querySelector(".la-playhead");
    this.ahead = element.querySelector(".la-ahead");
    this.mel = new MelMaker(rate);
    this.strip = document.createElement("canvas");
    this.strip.height = MEL.bands;
    this.begin();
    new ResizeObserver(() => this.draw(true)).observe(element);
    new MutationObserver(() => this.recolour()).observe(document.body, { attributeFilter: ["class"] });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.recolour());
  }

  begin() {
    this.columns = [];
    this.peaks = []; // [min, max] of each hop
    this.rest = new Int16Array(0);
    this.total = 0;
    this.heard = 0;
    this.page = 0;
    this.whole = false;
    this.pointed = null;
    this.mel.begin();
    this.recolour();
  }

  push(pcm) {
    this.columns.push(...this.mel.push(pcm));
    const joined = new Int16Array(this.rest.length + pcm.length);
    joined.set(this.rest);
    joined.set(pcm, this.rest.length);
    let start = 0;
    for (; start + this.mel.hop <= joined.length; start += this.mel.hop) {
      const part = joined.subarray(start, start + this.mel.hop);
      this.peaks.push([part.reduce((a, b) => Math.min(a, b)) / 32768, part.reduce((a, b) => Math.max(a, b)) / 32768]);
    }
    this.rest = joined.slice(start);
    this.total += pcm.length;
    this.stale = true;
  }

  // The last half window of sound still lacks its columns.
  end() {
    this.columns.push(...this.mel.push(new Int16Array(this.mel.window / 2)));
    this.stale = true;
  }

  get seconds() {
    return this.total / this.rate;
  }

  get fits() {
    return this.seconds <= SPANS_S.at(-1) * 0.98;
  }

  get span() {
    if (this.whole && this.seconds) return this.seconds;
    return this.fits ? SPANS_S.find((span) => this.seconds <= span * 0.98) : SPANS_S.at(-1);
  }

  // The page turns when the ear reaches seven eighths of it.
  get pageStart() {
    const { span } = this;
    return this.fits || this.whole ? 0 : Math.max(0, Math.floor((this.heard / this.rate - span / 8) / (span * 0.75))) * span * 0.75;
  }

  recolour() {
    const style = getComputedStyle(this.element);
    const value = (name) => style.getPropertyValue(name).trim();
    this.colours = { wave: value("--la-wave"), grid: value("--la-grid"), label: value("--la-label"), font: style.fontFamily };
    const stops = [0, 1, 2, 3, 4].map((i) => value(`--la-mel-${i}`).match(/\d+/g).map(Number));
    // As a canvas keeps its points: red in the lowest byte.
    this.palette = Uint32Array.from({ length: 256 }, (_, level) => {
      const place = (level / 255) * (stops.length - 1);
      const [low, high, mix] = [stops[Math.floor(place)], stops[Math.ceil(place)], place % 1];
      const [r, g, b] = low.map((channel, i) => Math.round(channel + (high[i] - channel) * mix));
      return (0xff000000 | (b << 16) | (g << 8) | r) >>> 0;
    });
    this.draw();
  }

  // Called every TICK_MS: move the playhead, repaint when samples came or the page turned. `whole` shows all of a long
  // reply at once.
  tick(heard, whole) {
    const turned = whole !== this.whole;
    this.heard = heard;
    this.whole = whole;
    if (this.stale || turned || this.pageStart !== this.page) this.draw();
    this.element.classList.toggle("la-moving", heard > 0 && heard < this.total);
    this.element.classList.toggle("la-some", this.total > 0);
    if (this.pointed !== null) return;
    const soon = heard + (TICK_MS / 1000) * this.rate * (heard > 0 && heard < this.total);
    this.move(this.x(Math.min(this.total, soon) / this.rate));
  }

  move(x) {
    this.playhead.style.transform = this.ahead.style.transform = `translateX(${x}px)`;
  }

  // While a press is held, the playhead is where it points to; null lets it go.
  point(x) {
    this.pointed = x;
    if (x !== null) this.move(this.x(this.sampleAt(x) / this.rate));
  }

  sampleAt(x) {
    const seconds = this.page + (Math.max(0, Math.min(this.width, x)) / this.width) * this.span;
    return Math.min(this.total, Math.round(seconds * this.rate));
  }

  x(seconds) {
    return Math.max(0, Math.min(1, (seconds - this.page) / this.span)) * this.width;
  }

  resize() {
    const ratio = devicePixelRatio || 1;
    const { clientWidth, clientHeight } = this.element;
    this.width = Math.max(0, clientWidth - GUTTER_PX); // of the time axis
    this.height = clientHeight;
    for (const canvas of [this.canvas, this.axes]) {
      canvas.width = clientWidth * ratio;
      canvas.height = this.height * ratio;
      canvas.getContext("2d").scale(ratio, ratio);
    }
  }

  draw(resized) {
    if (resized || !this.width) this.resize();
    const { width, height } = this;
    if (width === 0) return;
    this.stale = false;
    this.page = this.pageStart;
    const paint = this.canvas.getContext("2d");
    paint.clearRect(0, 0, width, height);
    const axis = 18;
    const waveHeight = Math.round((height - axis) * 0.3);
    const mel = { top: waveHeight + 6, height: height - axis - waveHeight - 6 };
    this.drawGround(paint, width, waveHeight, mel);
    this.drawMel(paint, mel);
    this.drawWave(paint, waveHeight);
    const above = this.axes.getContext("2d");
    above.clearRect(0, 0, width + GUTTER_PX, height);
    this.drawAxes(above, width, height, mel);
  }

  // Where sound will be: the line of silence, and the room for the mel.
  drawGround(paint, width, waveHeight, mel) {
    paint.fillStyle = this.colours.grid;
    paint.globalAlpha = 0.5;
    paint.fillRect(0, Math.round(waveHeight / 2), width, 1);
    paint.globalAlpha = 0.09;
    paint.fillRect(0, mel.top, width, mel.height);
    paint.globalAlpha = 1;
  }

  drawMel(paint, { top, height }) {
    const perSecond = this.rate / this.mel.hop;
    const first = Math.round(this.page * perSecond);
    const columns = this.columns.slice(first, first + Math.ceil(this.span * perSecond));
    const every = Math.max(1, Math.floor(columns.length / (2 * this.width))); // of a long reply, as many as can be seen
    const shown = columns.filter((_, i) => i % every === 0);
    if (shown.length === 0) return;
    this.strip.width = shown.length;
    const strip = this.strip.getContext("2d");
    const image = strip.createImageData(shown.length, MEL.bands);
    const points = new Uint32Array(image.data.buffer);
    for (let x = 0; x < shown.length; x++) {
      for (let band = 0; band < MEL.bands; band++) points[(MEL.bands - 1 - band) * shown.length + x] = this.palette[shown[x][band]];
    }
    strip.putImageData(image, 0, 0);
    paint.imageSmoothingQuality = "high";
    paint.drawImage(this.strip, 0, top, this.x(this.page + columns.length / perSecond), height);
  }

  drawWave(paint, height) {
    const perSecond = this.rate / this.mel.hop;
    const first = Math.round(this.page * perSecond);
    const shown = this.peaks.slice(first, first + Math.ceil(this.span * perSecond));
    const y = (value) => (height / 2) * (1 - Math.max(-1, Math.min(1, value / WAVE_TOP)));
    const at = (i) => this.x(this.page + (i + 0.5) / perSecond);
    paint.fillStyle = this.colours.wave;
    paint.beginPath();
    paint.moveTo(0, y(0));
    shown.forEach(([, high], i) => paint.lineTo(at(i), y(high) - 0.5));
    for (let i = shown.length - 1; i >= 0; i--) paint.lineTo(at(i), y(shown[i][0]) + 0.5);
    paint.fill();
  }

  stamp(second) {
    return second < 60 ? `${second} s` : `${Math.floor(second / 60)}:${String(Math.round(second % 60)).padStart(2, "0")}`;
  }

  drawAxes(paint, width, height, mel) {
    paint.font = `10px ${this.colours.font}`;
    paint.fillStyle = this.colours.label;
    paint.strokeStyle = this.colours.grid;
    paint.lineWidth = 1;
    const { span } = this;
    const step = TICKS_S.find((seconds) => span / seconds <= (width > 560 ? 8 : width > 200 ? 4 : 2)) ?? span / 4;
    for (let second = 0; second <= span + 0.01; second += step) {
      const x = (second / span) * width;
      paint.textAlign = second === 0 ? "left" : x > width - 24 ? "right" : "center";
      paint.fillText(this.stamp(this.page + second), second === 0 ? 2 : Math.min(x, width - 2), height - 4);
      paint.beginPath();
      paint.moveTo(x, mel.top + mel.height);
      paint.lineTo(x, mel.top + mel.height + 4);
      paint.stroke();
    }
    paint.textAlign = "left";
    for (const hz of [500, 1000, 2000, 4000]) {
      const y = mel.top + mel.height * (1 - hzToMel(hz) / hzToMel(MEL.maxHz));
      const text = hz < 1000 ? `${hz} Hz` : `${hz / 1000} kHz`;
      paint.fillText(text, width + 6, y + 3);
    }
  }
}
