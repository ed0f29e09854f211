// For a link that is too slow for the samples themselves: whether it is, and Opus packets -> int16. What is heard is no longer
// what was made, sample by sample, and the page says so.

const PACKET_US = 20_000;
const SAFETY = 2; // a link must carry so many times the samples, or they are compressed
const AMPLE = 8; // times what the samples need
const HERE = ["localhost", "127.0.0.1", "[::1]"]; // of this machine, there is no link
export const SLOW_PREBUFFER_MS = 300; // what comes over a slow link comes unevenly

export class OpusReply {
  // `head` is the stream's OpusHead in base64; `take` gets int16 at `rate`, in order.
  constructor(rate, head, take, failed) {
    Object.assign(this, { rate, take, sent: 0 });
    const byte = (at) => atob(head).charCodeAt(at);
    this.skip = byte(10) + 256 * byte(11); // samples at 48 kHz that the encoder needed to begin
    this.decoder = new AudioDecoder({ output: (data) => this.put(data), error: failed });
    this.decoder.configure({ codec: "opus", sampleRate: 48_000, numberOfChannels: 1 }); // with the head, some skip by themselves
  }

  // Packets stand one behind the other, each behind its length.
  push(bytes) {
    for (let at = 0; at < bytes.length; ) {
      const end = at + 2 + bytes[at] + 256 * bytes[at + 1];
      const data = bytes.subarray(at + 2, end);
      this.decoder.decode(new EncodedAudioChunk({ type: "key", timestamp: this.sent++ * PACKET_US, duration: PACKET_US, data }));
      at = end;
    }
  }

  // Resolves when the last sample was taken.
  end() {
    return this.decoder.flush().then(() => this.decoder.close());
  }

  // Decoders give 48 kHz, in which nothing above the stream's own rate sounds: every so many samples are enough.
  put(data) {
    const samples = new Float32Array(data.numberOfFrames);
    data.copyTo(samples, { planeIndex: 0, format: "f32-planar" });
    const every = data.sampleRate / this.rate;
    const first = Math.round((this.skip * data.sampleRate) / 48_000);
    const pcm = new Int16Array(Math.max(0, Math.ceil((samples.length - first) / every)));
    for (let i = 0; i < pcm.length; i++) pcm[i] = Math.max(-32768, Math.min(32767, Math.round(32768 * samples[first + i * every])));
    this.skip -= (Math.min(first, samples.length) * 48_000) / data.sampleRate;
    data.close();
    if (pcm.length) this.take(pcm);
  }
}

// How the next reply is sent: as its samples, or compressed where they would not come in time, by what the browser says of
// the link, or after a reply that came later than it was made.
let tooSlow = false;
export function soundWay(before) {
  const needed = (before.rate * 16 * 4) / 3; // bits a second, of which a quarter is words
  const speed = HERE.includes(location.hostname) ? Infinity : 1e6 * navigator.connection?.downlink; // NaN where nothing is known
  const ample = speed > AMPLE * needed; // it was not the link that was late
  tooSlow ||= !ample && before.underruns > (before.figures.underruns ?? 0);
  const decodes = typeof AudioDecoder === "function";
  return decodes && (tooSlow || speed < SAFETY * needed) ? "opus" : "pcm";
}
