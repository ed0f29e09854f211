// Replays at another speed and the same pitch: windows of the sound are put closer together or further apart, each where
// it goes on most smoothly from the one before (WSOLA).

const PACES = [1, 1.25, 1.5, 0.75];
const WINDOW_S = 0.04;
const SEARCH_S = 0.008; // around the place where the next window is due
const STRIDE = 4; // samples between those that are compared
const SLICE_WINDOWS = 50; // that are made at a time
let speed = 1; // of replays

// Where around `due` the sound is most like that at `after`, over half a window.
function alike(sound, due, after, half, search) {
  let [best, found] = [-Infinity, due];
  for (let at = Math.max(0, due - search); at <= Math.min(sound.length - half, due + search); at += STRIDE) {
    let sum = 0;
    for (let i = 0; i < half; i += STRIDE) sum += sound[at + i] * sound[after + i];
    if (sum > best) [best, found] = [sum, at];
  }
  return found;
}

// int16 -> slices of int16.
function* stretched(sound, by) {
  const half = Math.round((WINDOW_S * rate) / 2);
  const search = Math.round(SEARCH_S * rate);
  const rise = Float32Array.from({ length: half }, (_, i) => Math.sin((Math.PI * (i + 0.5)) / (2 * half)) ** 2);
  let place = 0; // where the newest window was taken from; its second half is still to fade
  for (let count = 1, due = 0; ; ) {
    const slice = [];
    for (let made = 0; made < SLICE_WINDOWS; made++, count++) {
      due = Math.round(count * half * by);
      if (due + 2 * half + search > sound.length) {
        yield Int16Array.from([...slice, ...sound.subarray(place + half)]);
        return;
      }
      const at = alike(sound, due, place + half, half, search);
      for (let i = 0; i < half; i++) slice.push(Math.round((1 - rise[i]) * sound[place + half + i] + rise[i] * sound[at + i]));
      place = at;
    }
    yield Int16Array.from(slice);
  }
}

// A slice at a time, so that the page stays awake; a newer start ends an older one.
function pushStretched(start) {
  const sound = new Int16Array(live.total - start);
  let at = -start;
  for (const chunk of pcm) {
    if (at + chunk.length > 0) sound.set(chunk.subarray(Math.max(0, -at)), Math.max(0, at));
    at += chunk.length;
  }
  const slices = stretched(sound, pace);
  const { epoch } = player;
  const next = () => {
    if (player.epoch !== epoch) return;
    const { value, done: over } = slices.next();
    if (over) {
      player.end();
      return;
    }
    player.push(value);
    setTimeout(next);
  };
  next();
}

$(".la-speed").addEventListener("click", () => {
  speed = PACES[(PACES.indexOf(speed) + 1) % PACES.length];
  $(".la-speed").textContent = `${speed}×`;
  $(".la-speed").setAttribute("aria-label", `Replays at ${speed} times the speed`);
  if (live.phase === "speaking" && live.ended && live.again) playFrom(heard());
});
