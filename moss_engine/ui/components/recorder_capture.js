// The microphone, as blocks of int16 at 16 kHz. It is open only while it is listened to.

const LAST_BLOCK_MS = 100; // the longest that the end of a recording is waited for
const WANTED = { echoCancellation: true, noiseSuppression: true, autoGainControl: true, channelCount: 1 };

class Capture {
  constructor(listener) {
    this.listener = listener; // (Int16Array, level)
    this.open = false;
  }

  static get possible() {
    return Boolean(window.isSecureContext && navigator.mediaDevices?.getUserMedia);
  }

  // Rejects with the browser's DOMException where the visitor or the machine gives no microphone.
  async start() {
    this.open = true;
    if (navigator.audioSession) navigator.audioSession.type = "play-and-record";
    this.stream = await navigator.mediaDevices.getUserMedia({ audio: WANTED });
    this.context ??= new AudioContext({ latencyHint: "interactive" });
    this.loaded ??= this.load();
    await Promise.all([this.loaded, this.context.resume()]);
    if (!this.open) return this.release();
    this.node = new AudioWorkletNode(this.context, "microphone", { numberOfOutputs: 0 });
    this.node.port.onmessage = ({ data }) => {
      if (this.open) this.listener(data.pcm, data.level);
      if (data.last) this.finished();
    };
    this.source = this.context.createMediaStreamSource(this.stream);
    this.source.connect(this.node);
  }

  load() {
    const url = URL.createObjectURL(new Blob([RECORDER_WORKLET], { type: "text/javascript" }));
    return this.context.audioWorklet.addModule(url).finally(() => URL.revokeObjectURL(url));
  }

  // Stop, but not before the last block was delivered, so that no word loses its end.
  async finish() {
    await new Promise((resolve) => {
      this.finished = resolve;
      this.node.port.postMessage("end");
      setTimeout(resolve, LAST_BLOCK_MS);
    });
    this.stop();
  }

  stop() {
    this.open = false;
    this.release();
  }

  release() {
    this.source?.disconnect();
    this.stream?.getTracks().forEach((track) => track.stop());
    this.context?.suspend();
    this.source = this.stream = this.node = null;
    // While an iPhone records, it plays through the earpiece.
    if (navigator.audioSession) navigator.audioSession.type = "playback";
  }
}
