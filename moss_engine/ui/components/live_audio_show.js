// What the visitor sees of the reply's state.

const SAYS = {
  idle: "Ready", sent: "Sending", waiting: "Waiting for a place", thinking: "Thinking",
  speaking: "Speaking", stopped: "Stopped", done: "Finished", failed: "Failed", lost: "Cut off",
};

function phase(name) {
  live.refused = false;
  if (live.phase === name) return;
  live.phase = name;
  element.dataset.phase = document.body.dataset.livePhase = name;
  document.body.classList.toggle("busy", BUSY.includes(name));
  $(".la-status").textContent = SAYS[name];
  element.classList.remove("la-paused");
  if (player.silent) showSilence();
  $(".la-pause").disabled = !seekable();
  $(".la-save").disabled = live.total === 0;
  $(".la-share").disabled = !live.ended;
  $(".la-keep").disabled = !live.ended || !live.complete || !live.recipe;
  announce();
}

// Whether it is held, by the visitor or by the browser, which may take the sound away at any time.
function showSilence() {
  if (live.phase !== "speaking") return;
  freeze(!player.silent);
  element.classList.toggle("la-paused", player.silent);
  $(".la-status").textContent = player.silent ? "Paused" : SAYS.speaking;
}

let announced = 0;
let pendingAnnounce = 0;
function announce() {
  if (pendingAnnounce) return;
  const wait = Math.max(0, TICK_MS - (performance.now() - announced));
  pendingAnnounce = setTimeout(() => {
    pendingAnnounce = 0;
    announced = performance.now();
    document.dispatchEvent(new CustomEvent("liveaudio", { detail: live }));
  }, wait);
}

const stamp = (samples) => {
  const seconds = samples / rate;
  return `${Math.floor(seconds / 60)}:${(seconds % 60).toFixed(1).padStart(4, "0")}`;
};

let shown = "";
function tick() {
  const now = heard();
  const whole = live.ended && (live.phase !== "speaking" || live.again);
  const key = `${Math.round(now)} ${live.total} ${live.phase} ${captions.segments.length} ${whole}`;
  if (key === shown) return;
  shown = key;
  const silent = !live.speaks || (live.ended && now >= live.total); // what is written after the sound is not heard
  captions.show(silent ? Infinity : now, live.total, rate, live.ended);
  scope.tick(now, whole);
  $(".la-time").textContent = `${stamp(now)} / ${stamp(live.total)}`;
  const place = $(".la-scope");
  place.setAttribute("aria-valuemax", (live.total / rate).toFixed(1));
  place.setAttribute("aria-valuenow", (now / rate).toFixed(1));
  place.setAttribute("aria-valuetext", `${stamp(now)} of ${stamp(live.total)}`);
}
