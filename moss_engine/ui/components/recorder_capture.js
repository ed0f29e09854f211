// The microphone, as blocks of int16 at 16 kHz. It is open only while it is listened to.

const LAST_BLOCK_MS = 100; // the longest that the end of a recording is waited for
const MUTED_MS = 2000; // a shorter pause is no news: headsets mute themselves for a moment
// Without gain control, which makes an echo that is left in a pause as loud as the visitor's voice.
const WANTED = { echoCancellation: true, noiseSuppression: true, autoGainControl: false, channelCount: 1 };

const close = (stream) => stream.getTracks().forEach((track) => track.stop());

class Capture {
  constructor(listener, ended, muted) {
    Object.assign(this, { listener, ended, muted }); // (Int16Array, level), (), (whether it is)
    this.turn = null; // of a recording, from its start to its stop
  }

  static get possible() {
    return Boolean(window.isSecureContext && navigator.mediaDevices?.getUserMedia);
  }

  get open() {
    return this.turn !== null;
  }

  // Rejects with the browser's DOMException where the visitor or the machine gives no microphone. One that was stopped, or
  // followed by another, before the browser gave what it needs leaves nothing open.
  async start() {
    const mine = (this.turn = {});
    if (navigator.audioSession) navigator.audioSession.type = "play-and-record";
    const stream = await navigator.mediaDevices.getUserMedia({ audio: WANTED });
    if (this.turn !== mine) return close(stream);
    this.stream = stream;
    stream.getTracks().forEach((track) => this.watch(track));
    this.context ??= new AudioContext({ latencyHint: "interactive" });
    this.loaded ??= this.load();
    await Promise.all([this.loaded, this.context.resume()]);
    if (this.turn !== mine) return close(stream);
    this.node = new AudioWorkletNode(this.context, "microphone", { numberOfOutputs: 0 });
    this.node.port.onmessage = ({ data }) => {
      if (this.turn !== mine) return;
      this.listener(data.pcm, data.level);
      if (data.last) this.finished();
    };
    this.source = this.context.createMediaStreamSource(stream);
    this.source.connect(this.node);
  }

  // A device may be unplugged, forbidden or switched off while it is listened to; `stop` is no news.
  watch(track) {
    const mine = () => this.open && this.stream?.getTracks().includes(track);
    track.onended = () => mine() && this.ended();
    track.onmute = () => setTimeout(() => mine() && track.muted && this.muted(true), MUTED_MS);
    track.onunmute = () => mine() && this.muted(false);
  }

  load() {
    const url = URL.createObjectURL(new Blob([RECORDER_WORKLET], { type: "text/javascript" }));
    return this.context.audioWorklet.addModule(url).finally(() => URL.revokeObjectURL(url));
  }

  // Stop, but not before the last block was delivered, so that no word loses its end.
  async finish() {
    const mine = this.turn;
    await new Promise((resolve) => {
      this.finished = resolve;
      this.node.port.postMessage("end");
      setTimeout(resolve, LAST_BLOCK_MS);
    });
    if (this.turn === mine) this.stop();
  }

  stop() {
    this.turn = null;
    this.release();
  }

  release() {
    this.source?.disconnect();
    this.node?.port.postMessage("close");
    if (this.stream) close(this.stream);
    this.context?.suspend();
    this.source = this.stream = this.node = null;
    // While an iPhone records, it plays through the earpiece.
    if (navigator.audioSession) navigator.audioSession.type = "playback";
  }
}
