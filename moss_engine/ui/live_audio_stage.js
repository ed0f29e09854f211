// What the eye gets: captions in step with the sound, and waveform over mel of the whole reply. Parts that were made
// but not yet heard are pale, so the lead of the model over the ear is visible.

const SPANS_S = [8, 16, 32]; // visible seconds; longer replies turn pages of the last size
const TICK_MS = 100;
const WAVE_TOP = 0.6; // the sample value at the edge of the waveform: speech seldom is louder

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

class Scope {
  constructor(element, rate) {
    const [canvas, axes] = element.querySelectorAll("canvas");
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

  get span() {
    const seconds = this.total / this.rate;
    return SPANS_S.find((span) => seconds <= span * 0.98) ?? SPANS_S.at(-1);
  }

  // The page turns when the ear reaches seven eighths of it.
  get pageStart() {
    const { span } = this;
    return span < SPANS_S.at(-1) ? 0 : Math.max(0, Math.floor((this.heard / this.rate - span / 8) / (span * 0.75))) * span * 0.75;
  }

  recolour() {
    const style = getComputedStyle(this.element);
    const value = (name) => style.getPropertyValue(name).trim();
    this.colours = { wave: value("--la-wave"), grid: value("--la-grid"), label: value("--la-label"),
      back: `rgb(${value("--la-back")})`, font: style.fontFamily };
    const stops = [0, 1, 2, 3, 4].map((i) => value(`--la-mel-${i}`).match(/\d+/g).map(Number));
    this.palette = Array.from({ length: 256 }, (_, level) => {
      const place = (level / 255) * (stops.length - 1);
      const [low, high, mix] = [stops[Math.floor(place)], stops[Math.ceil(place)], place % 1];
      return low.map((channel, i) => Math.round(channel + (high[i] - channel) * mix));
    });
    this.draw();
  }

  // Called every TICK_MS: move the playhead, repaint when samples came or the page turned.
  tick(heard) {
    this.heard = heard;
    const start = this.pageStart;
    if (this.stale || start !== this.page) this.draw();
    const x = this.x(Math.min(this.total, heard + (TICK_MS / 1000) * this.rate * (heard > 0 && heard < this.total)) / this.rate);
    this.playhead.style.transform = this.ahead.style.transform = `translateX(${x}px)`;
    this.element.classList.toggle("la-moving", heard > 0 && heard < this.total);
  }

  x(seconds) {
    return Math.max(0, Math.min(1, (seconds - this.page) / this.span)) * this.width;
  }

  resize() {
    const ratio = devicePixelRatio || 1;
    this.width = this.element.clientWidth;
    this.height = this.element.clientHeight;
    for (const canvas of [this.canvas, this.axes]) {
      canvas.width = this.width * ratio;
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
    above.clearRect(0, 0, width, height);
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
    const shown = this.columns.slice(first, first + Math.ceil(this.span * perSecond));
    if (shown.length === 0) return;
    this.strip.width = shown.length;
    const strip = this.strip.getContext("2d");
    const image = strip.createImageData(shown.length, MEL.bands);
    shown.forEach((column, x) => {
      column.forEach((level, band) => {
        const at = 4 * ((MEL.bands - 1 - band) * shown.length + x);
        const [r, g, b] = this.palette[level];
        image.data.set([r, g, b, 255], at);
      });
    });
    strip.putImageData(image, 0, 0);
    paint.imageSmoothingQuality = "high";
    paint.drawImage(this.strip, 0, top, this.x(this.page + shown.length / perSecond), height);
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

  drawAxes(paint, width, height, mel) {
    paint.font = `10px ${this.colours.font}`;
    paint.fillStyle = this.colours.label;
    paint.strokeStyle = this.colours.grid;
    paint.lineWidth = 1;
    const { span } = this;
    const step = (span / (width > 560 ? 8 : 4));
    for (let second = 0; second <= span; second += step) {
      const x = (second / span) * width;
      paint.textAlign = second === 0 ? "left" : second >= span ? "right" : "center";
      paint.fillText(`${this.page + second} s`, second === 0 ? 2 : x, height - 4);
      paint.beginPath();
      paint.moveTo(x, mel.top + mel.height);
      paint.lineTo(x, mel.top + mel.height + 4);
      paint.stroke();
    }
    paint.textAlign = "right";
    paint.strokeStyle = this.colours.back; // a rim, so that they can be read on the mel
    paint.lineWidth = 3;
    paint.lineJoin = "round";
    for (const hz of [500, 1000, 2000, 4000]) {
      const y = mel.top + mel.height * (1 - hzToMel(hz) / hzToMel(MEL.maxHz));
      const text = hz < 1000 ? `${hz} Hz` : `${hz / 1000} kHz`;
      paint.strokeText(text, width - 5, y + 3);
      paint.fillText(text, width - 5, y + 3);
    }
  }
}
