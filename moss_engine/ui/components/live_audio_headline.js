// The reply in three figures and plain words. The engine's own figures are the panel's.

const SPEED_SINCE_S = 1; // of sound: before, the time to the first of it outweighs the rest

function say(name, value, words, bad = false) {
  const part = $(`.la-headline [data-say="${name}"]`);
  const [figure, text] = part.children;
  write(figure, value);
  write(text, words);
  part.classList.toggle("la-bad", bad);
}

const seconds = (ms) => `${(ms / 1000).toFixed(2)} s`;

function headline(live) {
  element.classList.toggle("la-begun", live.run !== null);
  const { heardAfterMs, figures, starved } = live;
  if (live.speaks) say("heard", heardAfterMs == null ? "–" : seconds(heardAfterMs), live.byWords ? "from your last word to the first sound" : "from your press to the first sound");
  else say("heard", figures.first_row_ms == null ? "–" : seconds(figures.first_row_ms), "from your question to the first word");
  const known = figures.rtf && figures.audio_s >= SPEED_SINCE_S;
  const slow = known && figures.rtf >= 1;
  const factor = known ? (slow ? figures.rtf : 1 / figures.rtf) : 0;
  say("speed", known ? `${factor.toFixed(factor < 9.95 ? 1 : 0)}×` : "–", slow ? "slower than it is spoken" : "faster than it is spoken", slow);
  const gaps = live.underruns;
  const missing = `the sound had to wait, ${Math.round((1000 * starved) / rate)} ms in all`;
  if (live.total) say("gaps", gaps ? `${gaps} gap${gaps > 1 ? "s" : ""}` : "No gaps", gaps ? missing : "the sound never had to wait", gaps > 0);
  else say("gaps", "–", live.speaks ? "gaps in the sound" : "no sound: the answer is written");
}
document.addEventListener("liveaudio", ({ detail }) => headline(detail));
