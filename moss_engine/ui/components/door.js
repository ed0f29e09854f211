// The way to the server: one WebSocket for this load of the page; `moss_engine/ui/door.py` says what passes it. A
// connection that breaks is taken up where it broke, if that is soon; nothing is lost then, and nothing comes twice.

import { randomName } from "./common.js";

const RESUME_MS = 15_000; // the server waits no longer
const TRY_MS = [100, 250, 500, 1000]; // between attempts, the last one again and again
const OPEN_MS = 4000; // for an attempt
const GOT_MS = 500; // between two words about what has come
const SAID_MS = 1000; // a shorter break is no news
const MOST_KEPT_BYTES = 2 * 2 ** 20; // of the last frames: more than a microphone hears while a connection is waited for
const REFUSED = [4002, 4013];

export class Door {
  // `on` are functions: event(event, sound as ArrayBuffer or null), broken(), back(renewed, resumed), refused(reason), lost().
  constructor(url, key, on) {
    Object.assign(this, { url, key, on, visit: randomName(), last: -1, instance: null, attempts: 0, brokenAt: null, told: false, gaveUp: false });
    this.frames = []; // the last ones, from number `first` on
    this.first = 0;
    this.open();
    setInterval(() => this.acknowledge(), GOT_MS);
    window.addEventListener("pagehide", () => this.isOpen && this.socket.send('{"type":"session.close"}'));
    window.addEventListener("online", () => this.isOpen || this.open());
    window.addEventListener("offline", () => this.isOpen && this.renew());
  }

  get isOpen() {
    return this.ready === true && this.socket.readyState === WebSocket.OPEN;
  }

  send(event) {
    this.put(JSON.stringify(event));
  }

  // int16 samples.
  sound(pcm) {
    this.put(pcm.buffer);
  }

  put(data) {
    this.frames.push(data);
    if (this.isOpen) this.socket.send(data);
    const size = (data) => data.byteLength ?? data.length;
    for (let bytes = this.frames.reduce((sum, frame) => sum + size(frame), 0); bytes > MOST_KEPT_BYTES; this.first += 1) bytes -= size(this.frames.shift());
  }

  // The server has the first so many frames.
  seen(count) {
    this.frames.splice(0, Math.max(0, count - this.first));
    this.first = Math.max(this.first, count);
  }

  acknowledge() {
    if (!this.isOpen || this.acknowledged === this.last) return;
    this.acknowledged = this.last;
    this.send({ type: "got", last: this.last }); // the server counts it with all others
  }

  open() {
    clearTimeout(this.trying);
    const socket = (this.socket = new WebSocket(this.url));
    this.ready = false;
    socket.binaryType = "arraybuffer";
    socket.onopen = () => socket.send(JSON.stringify({ type: "session.open", visit: this.visit, key: this.key, last: this.last }));
    socket.onmessage = ({ data }) => socket === this.socket && this.take(data);
    socket.onclose = ({ code, reason }) => socket === this.socket && this.closed(code, reason);
    this.trying = setTimeout(() => socket === this.socket && !this.ready && this.renew(), OPEN_MS);
  }

  // Give this connection up, as it carries nothing any more.
  renew() {
    this.socket.onclose = null;
    this.socket.close();
    this.closed();
  }

  closed(code, reason) {
    clearTimeout(this.trying);
    const now = performance.now();
    this.brokenAt ??= now;
    this.ready = false;
    if (REFUSED.includes(code) && reason) this.on.refused(reason);
    if (now - this.brokenAt > SAID_MS && !this.told) {
      this.told = true;
      this.on.broken();
    }
    if (now - this.brokenAt > RESUME_MS && !this.gaveUp) this.giveUp();
    this.trying = setTimeout(() => this.open(), TRY_MS[Math.min(this.attempts++, TRY_MS.length - 1)]);
  }

  // The server knows nothing of this tab any more; it begins anew, under another name.
  giveUp() {
    Object.assign(this, { visit: randomName(), last: -1, frames: [], first: 0, gaveUp: true });
    this.on.lost();
  }

  take(data) {
    let event, sound = null;
    if (typeof data === "string") event = JSON.parse(data);
    else {
      const length = new DataView(data).getUint32(0, true);
      event = JSON.parse(new TextDecoder().decode(new Uint8Array(data, 4, length)));
      sound = data.slice(4 + length);
    }
    if (event.type === "session.opened") return this.opened(event);
    this.last += 1;
    this.on.event(event, sound);
  }

  // Where the server goes on, it gets what it has not. Where it begins anew, what was asked of the one before is nobody's.
  opened({ instance, seen, resumed }) {
    clearTimeout(this.trying);
    const again = this.instance !== null;
    const renewed = again && this.instance !== instance;
    this.instance = instance;
    this.ready = true;
    this.attempts = 0;
    this.brokenAt = null;
    resumed &&= !this.gaveUp; // under the new name an attempt before this one may have come
    if (resumed) this.seen(seen);
    else {
      this.last = this.acknowledged = -1;
      if (again) this.frames = [];
      this.first = 0;
      if (again) this.on.lost();
    }
    for (const data of this.frames) this.socket.send(data);
    if (again) this.on.back(renewed, resumed);
    this.told = this.gaveUp = false;
  }
}
