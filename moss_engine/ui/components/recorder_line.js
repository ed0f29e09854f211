// What the microphone hears, on its way to the server through the page's door; files go by a request of their own.

const ATTEMPTS = 3;
const LOST = "The connection to the server was lost; check it and try again.";
const KEPT_TIMES = 256; // blocks of which is known when they ended

class Line {
  constructor(heard, failed, saying) {
    Object.assign(this, { heard, failed, saying, recording: 0, active: false, said: "", key: null });
    this.root = (window.gradio_config?.root || "").replace(/\/$/, "");
  }

  get door() {
    return window.liveAudio.door;
  }

  begin(handsFree) {
    this.recording += 1;
    Object.assign(this, { active: true, count: 0, ends: [] });
    this.door.send({ type: "input_audio_buffer.begin", hands_free: handsFree, recording: this.recording });
  }

  push(pcm) {
    if (!this.active) return;
    const update = { answering: window.liveAudio.state.phase === "speaking", saying: this.saying() };
    const said = JSON.stringify(update);
    if (said !== this.said) this.door.send({ type: "input_audio_buffer.update", ...update });
    this.said = said;
    this.ends[this.count % KEPT_TIMES] = performance.now();
    this.count += 1;
    this.door.sound(pcm);
  }

  // When a block ended, on the page's clock.
  endOf(block) {
    return this.ends[block % KEPT_TIMES];
  }

  end() {
    this.door.send({ type: "input_audio_buffer.commit" });
  }

  // What is still on its way belongs to nobody any more.
  drop() {
    if (this.active) this.door.send({ type: "input_audio_buffer.clear" });
    this.active = false;
  }

  answered(answer) {
    if (answer.recording !== this.recording || !this.active) return;
    this.active = !(answer.last || answer.failed);
    if (answer.failed) this.failed(answer.failed);
    else this.heard(answer, answer.last);
  }

  // The key under which files are sent.
  async open() {
    const headers = { "Content-Type": "application/json" };
    const answer = await fetch(`${this.root}/gradio_api/run/listen`, { method: "POST", headers, body: '{"data": []}' }).catch(() => null);
    const { data, error } = (await answer?.json().catch(() => null)) ?? {};
    if (!answer?.ok || !data) throw new Error(error || LOST);
    this.key = data[0];
  }

  async sendFile(file) {
    for (let attempt = 1; ; attempt++) {
      if (!this.key) await this.open();
      let answer;
      try {
        answer = await fetch(`${this.root}/gradio_api/hear/${this.key}/file`, { method: "POST", body: file });
      } catch {
        if (attempt === ATTEMPTS) throw new Error(LOST);
        await new Promise((resolve) => setTimeout(resolve, 200 * attempt));
        continue;
      }
      const message = await answer.json().catch(() => ({}));
      if (answer.status === 404) this.key = null; // it was closed for want of use
      if (answer.ok) return message;
      if (answer.status !== 404 || attempt === ATTEMPTS) throw new Error(message.detail || LOST);
    }
  }
}
