// The way to the server: blocks in order, one request at a time, so that whatever gathers while one is on its way goes
// with the next.

const MOST_SAMPLES = 65536; // of one request
const ATTEMPTS = 3;
const LOST = "The connection to the server was lost; check it and try again.";

class Line {
  constructor(heard, failed, saying) {
    Object.assign(this, { heard, failed, saying, key: null, opening: null, recording: 0, queue: [], ending: false, busy: false });
    this.root = (window.gradio_config?.root || "").replace(/\/$/, "");
  }

  // The key under which recordings are sent; asked for once.
  async open() {
    if (this.key) return;
    this.opening ??= this.listen().finally(() => (this.opening = null));
    await this.opening;
  }

  async listen() {
    const headers = { "Content-Type": "application/json" };
    const answer = await fetch(`${this.root}/gradio_api/run/listen`, { method: "POST", headers, body: '{"data": []}' }).catch(() => null);
    const { data, error } = (await answer?.json().catch(() => null)) ?? {};
    if (!answer?.ok || !data) throw new Error(error || LOST);
    this.key = data[0];
  }

  begin(handsFree) {
    this.recording += 1;
    Object.assign(this, { queue: [], seq: 0, handsFree, ending: false, active: true });
  }

  push(pcm) {
    if (!this.active) return;
    this.queue.push(pcm);
    this.pump();
  }

  end() {
    this.ending = true;
    this.pump();
  }

  // What is still on its way belongs to nobody any more.
  drop() {
    this.recording += 1;
    Object.assign(this, { queue: [], ending: false, active: false });
  }

  async pump() {
    if (this.busy || !this.active || (this.queue.length === 0 && !this.ending)) return;
    this.busy = true;
    const recording = this.recording;
    try {
      await this.open();
      if (recording === this.recording) await this.sendNext(recording);
    } catch (error) {
      if (recording === this.recording) {
        this.drop();
        this.failed(error.message);
      }
    } finally {
      this.busy = false;
      this.pump();
    }
  }

  async sendNext(recording) {
    const body = this.join();
    const last = this.ending && this.queue.length === 0;
    const flags = [this.handsFree, window.liveAudio.state.phase === "speaking", last].map(Number);
    const query = `seq=${this.seq}&hands_free=${flags[0]}&answering=${flags[1]}&end=${flags[2]}`;
    const said = { "X-Saying": encodeURIComponent(this.saying()) }; // no part of an address, which proxies write down
    const answer = await this.post(`?${query}`, body, said);
    if (recording !== this.recording) return;
    this.seq += 1;
    this.active = !last;
    this.heard(answer, last);
  }

  join() {
    let samples = 0;
    let blocks = 0;
    while (blocks < this.queue.length && samples < MOST_SAMPLES) samples += this.queue[blocks++].length;
    const body = new Int16Array(samples);
    let at = 0;
    for (const block of this.queue.splice(0, blocks)) {
      body.set(block, at);
      at += block.length;
    }
    return body;
  }

  async sendFile(file) {
    await this.open();
    return this.post("/file", file);
  }

  async post(rest, body, headers = {}) {
    for (let attempt = 1; ; attempt++) {
      let answer;
      try {
        answer = await fetch(`${this.root}/gradio_api/hear/${this.key}${rest}`, { method: "POST", body, headers });
      } catch {
        if (attempt === ATTEMPTS) throw new Error(LOST);
        await new Promise((resolve) => setTimeout(resolve, 200 * attempt));
        continue;
      }
      const message = await answer.json().catch(() => ({}));
      if (answer.status === 404) {
        this.key = null; // it was closed for want of use: what begins anew needs nothing of it
        if (attempt < ATTEMPTS && (rest === "/file" || rest.startsWith("?seq=0&"))) {
          await this.open();
          continue;
        }
      }
      if (!answer.ok) throw new Error(message.detail || LOST);
      return message;
    }
  }
}
