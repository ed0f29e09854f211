// Waveform over mel of the reply. What was made but not yet heard is pale, as in the captions.

const SPANS_S = [8, 16, 32]; // visible seconds; while it is being made, a longer reply turns pages of the last size
const TICKS_S = [0.5, 1, 2, 4, 5, 10, 15, 30, 60, 120, 300]; // between two numbers of the axis
const TICK_MS = 100;
const GUTTER_PX = 44; // at the right, for the frequencies: nothing is painted under them
const WAVE_TOP = 0.6; // the sample value at the edge of the waveform: speech seldom is louder

class Scope {
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
    this.sampled = false;
    this.pointed = null;
    this.mel.begin();
    this.recolour();
  }

  // A picture of speech while there is none: pale, as nothing of it is heard.
  showSample({ seconds, bands, every, mel, peaks }) {
    const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    const levels = [...bytes(mel)].flatMap((byte) => [17 * (byte >> 4), 17 * (byte & 15)]);
    this.columns = Array.from({ length: (levels.length / bands) * every }, (_, i) => {
      const column = levels.slice(bands * Math.floor(i / every), bands * (Math.floor(i / every) + 1));
      return Uint8Array.from({ length: MEL.bands }, (_, band) => column[Math.floor((band * bands) / MEL.bands)]);
    });
    this.peaks = [...bytes(peaks)].map((peak) => [-peak / 255, peak / 255]);
    this.total = seconds * this.rate;
    this.sampled = this.stale = true;
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
    if (this.sampled) return this.seconds;
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
