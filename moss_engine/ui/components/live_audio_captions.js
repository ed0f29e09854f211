// Captions in step with the sound. Words that were made but not yet heard are pale, so the lead of the model over the
// ear is visible.

const SAID_S = 6; // of a reply, that may still be on its way through room, microphone and recogniser
const NEXT_S = 1;
// With the space before them, and the last one with that behind it. Chinese writes none: every sign is one, with the
// punctuation behind it.
const WORDS = /\s*(?:\p{Script=Han}\p{P}*|[^\s\p{Script=Han}]+)\s*$|\s*(?:\p{Script=Han}\p{P}*|[^\s\p{Script=Han}]+)/gu;

class Captions {
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
    let letters = 0;
    segment.words = pieces.map((piece, index) => {
      const element = segment.words[index]?.element || document.createElement("span");
      if (element.textContent !== piece) element.textContent = piece;
      const word = { element, at: letters / segment.text.length };
      letters += piece.length;
      return word;
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
