// What the rest of the page may call, and the first picture.

element.classList.toggle("la-plain", !player.exact);
watch("value", () => take(inFull(props.value)));
setInterval(tick, TICK_MS);
window.liveAudio = {
  ready: true, submit, expect, stop, halt, told, hold, player, scope, submitAgain, considered,
  foresee: () => trigger("foresee"),
  get ownMs() { return player.prebufferMs + player.outputLatencyMs; },
  get file() { return file; },
  get state() { return live; },
  get asking() { return asked !== null; },
  wav: () => wavOf(pcm, rate),
  bars: (count) => barsOf(pcm, count),
  get text() { return captions.text; },
  get saying() { return captions.around(heard(), live.total, rate, live.ended); },
  get heard() { return asked ? 0 : heard(); },
};
scope.showSample(SAMPLE);
phase("idle");
