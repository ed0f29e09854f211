// Whether the server is still there. While a reply is open it says something four times a second; where it does not, it
// is asked for a sign of life, which tells a lost connection from a slow answer.

const QUIET_MS = 4000; // without a message, before it is asked
const LOOK_MS = 1000;
const PATIENCE_MS = 30_000; // for a server that takes the question and does not answer
const SIGNS = 2; // of life without a word of the reply: the reply itself was lost

class Watch {
  // `waits` says how much is still to come: nothing, the "first" message, or "more" of them.
  constructor(url, waits, lost) {
    Object.assign(this, { url, waits, lost, asking: false });
    this.heard();
    setInterval(() => this.look(), LOOK_MS);
  }

  heard() {
    this.at = performance.now();
    this.signs = 0;
  }

  async look() {
    if (!this.waits()) this.heard();
    if (this.asking || performance.now() - this.at < QUIET_MS) return;
    this.asking = true;
    const { at } = this;
    const there = await fetch(this.url, { cache: "no-store", signal: AbortSignal.timeout(PATIENCE_MS) }).then(() => true, () => false);
    this.asking = false;
    if (this.at !== at || !this.waits()) return; // it spoke meanwhile
    this.signs += 1;
    if (!there || (this.waits() === "more" && this.signs >= SIGNS)) this.lost();
  }
}
