// Captions in step with the sound. Words that were made but not yet heard are pale, so the lead of the model over the
// ear is visible.

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
    const pieces = segment.text.match(/\s*\S+\s*$|\s*\S+/g) || [];
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

  // Mark every word whose sound began before `heard` samples; `total` is the reply's length so far.
  show(heard, total, rate, ended) {
    let current = null;
    this.segments.forEach((segment, index) => {
      const guess = segment.start + segment.text.length * 0.065 * rate;
      const next = this.segments[index + 1]?.start ?? (ended ? total : Math.max(total, guess));
      for (const word of segment.words) {
        const said = heard > segment.start + word.at * (next - segment.start);
        word.element.classList.toggle("said", said);
        if (said) current = word.element;
      }
    });
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
