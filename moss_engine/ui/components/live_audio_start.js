// What the rest of the page may call, and the first picture.

element.classList.toggle("la-plain", !player.exact);
setInterval(tick, TICK_MS);
window.liveAudio = {
  ready: false, submit, submitTyped, expect, count, stop, clear, hold, player, scope,
  get door() { return door; },
  get file() { return file; },
  get state() { return live; },
  get asking() { return asked !== null; },
  get busy() { return asked !== null || typed.length > 0 || BUSY.includes(live.phase); },
  wav: () => wavOf(pcm, rate),
  bars: (count) => barsOf(pcm, count),
  get text() { return captions.text; },
  get saying() { return captions.around(heard(), live.total, rate, live.ended); },
  get heard() { return asked ? 0 : heard(); },
};
scope.showSample(SAMPLE);
phase("idle");
// The tab's name is known when the conversation is there.
const knocking = setInterval(() => {
  if (!window.conversation) return;
  clearInterval(knocking);
  openDoor();
  window.liveAudio.ready = true;
  document.dispatchEvent(new Event("liveready"));
}, 5);
