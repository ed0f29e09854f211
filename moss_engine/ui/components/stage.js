// The stage: captions, and below them the waveform, in step with the ear.

import { drawBars, spelledOn } from "./common.js";

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
    new ResizeObserver(() => this.current && this.follow(this.current)).observe(element.parentElement);
    this.begin();
  }

  begin() {
    this.current = null;
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

// The waveform of the reply, as a slider over the place that is heard. What was made but not yet heard is pale, as in the
// captions.

export const TICK_MS = 100;
const BARS = 160;
const HOP_S = 0.02; // of sound, of which the loudest sample is kept
const LOUD = 0.6; // the sample that fills the height: speech seldom is louder
const LEAST_S = 8; // that are in sight; while it is being made, a longer reply has twice as much, and so on
const STEPS_S = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: 5, PageDown: -5 };

export class Wave {
  // `seek` gets the sample from which on somebody wants to hear it.
  constructor(element, rate, seek) {
    Object.assign(this, { element, rate, seek, hop: Math.round(HOP_S * rate) });
    this.place = element.querySelector("input");
    this.paths = element.querySelectorAll("path");
    this.place.addEventListener("input", () => (this.pointed = true));
    this.place.addEventListener("change", () => {
      this.pointed = false;
      seek(this.place.value * rate);
    });
    this.place.addEventListener("keydown", (event) => {
      const step_s = STEPS_S[event.key];
      if (step_s === undefined) return;
      event.preventDefault();
      this.heard = Math.max(0, Math.min(this.total, this.heard + step_s * rate)); // until the next tick
      seek(this.heard);
    });
    this.begin();
  }

  begin() {
    this.peaks = []; // 0..1 of each hop
    this.total = this.heard = 0;
    this.pointed = false;
    this.drawn = "";
    this.tick(0, false);
  }

  push(pcm) {
    for (const sample of pcm) {
      const hop = Math.floor(this.total++ / this.hop);
      this.peaks[hop] = Math.max(this.peaks[hop] ?? 0, Math.abs(sample) / 32768);
    }
  }

  // Called every TICK_MS; a reply that is over is seen whole.
  tick(heard, over) {
    this.heard = heard;
    const [total_s, heard_s] = [this.total / this.rate, heard / this.rate];
    const span_s = over ? total_s : LEAST_S * 2 ** Math.max(0, Math.ceil(Math.log2(total_s / LEAST_S)));
    const key = `${this.total} ${span_s}`;
    if (key !== this.drawn) this.draw(span_s);
    this.drawn = key;
    this.element.style.setProperty("--at", heard_s / span_s || 0);
    this.place.setAttribute("aria-valuetext", `${stamp(heard_s)} of ${stamp(total_s)}`);
    if (!this.pointed) Object.assign(this.place, { max: span_s, value: heard_s });
  }

  draw(span_s) {
    const hops = span_s / HOP_S / BARS; // of one bar; in a short reply, some have the same
    const made = Math.min(BARS, Math.ceil(this.peaks.length / hops));
    const bars = Array.from({ length: made }, (_, bar) => {
      const first = Math.floor(bar * hops);
      const loudest = Math.max(...this.peaks.slice(first, Math.max(first + 1, Math.floor((bar + 1) * hops))));
      return Math.min(100, (100 * loudest) / LOUD);
    });
    drawBars(this.paths, bars);
  }
}

export const stamp = (seconds) => `${Math.floor(seconds / 60)}:${(seconds % 60).toFixed(1).padStart(4, "0")}`;
