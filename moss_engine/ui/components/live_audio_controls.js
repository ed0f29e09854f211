// The player's own controls, and what the browser does to the sound by itself.

function pauseOrReplay() {
  if (live.phase !== "speaking") return playFrom(0);
  if (player.silent) player.resume();
  else player.pause();
  showSilence();
}

// Hold the reply, as something else is to be heard.
function hold() {
  if (live.phase === "speaking" && !player.silent) pauseOrReplay();
}

function give(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

const save = () => give(wavOf(pcm, rate), `moss-speech-${live.run || "reply"}.wav`);

$(".la-pause").addEventListener("click", pauseOrReplay);
const volume = $(".la-volume");
const mute = $(".la-mute");
volume.addEventListener("input", () => player.setVolume(volume.value / 100, false));
mute.addEventListener("click", () => player.setVolume(volume.value / 100, !player.muted));
for (const control of [volume, mute]) {
  control.addEventListener(control === mute ? "click" : "input", () => {
    mute.setAttribute("aria-pressed", player.muted);
    element.classList.toggle("la-muted", player.muted || volume.value === "0");
  });
}

// The scope is a slider: a press, a drag and the arrow keys move the place that is heard.
const place = $(".la-scope");
const STEPS_S = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: 5, PageDown: -5 };
place.addEventListener("keydown", (event) => {
  const target = { Home: 0, End: live.total }[event.key] ?? heard() + STEPS_S[event.key] * rate;
  if (Number.isNaN(target) || !seekable()) return;
  event.preventDefault();
  playFrom(target);
});
place.addEventListener("pointerdown", (event) => {
  if (!seekable() || event.button !== 0) return;
  const show = ({ clientX }) => scope.point(clientX - place.getBoundingClientRect().left);
  const release = (last) => {
    place.removeEventListener("pointermove", show);
    for (const name of ["pointerup", "pointercancel"]) place.removeEventListener(name, release);
    const target = scope.sampleAt(last.clientX - place.getBoundingClientRect().left);
    scope.point(null);
    if (last.type === "pointerup" && seekable()) playFrom(target);
  };
  place.setPointerCapture(event.pointerId);
  place.addEventListener("pointermove", show);
  for (const name of ["pointerup", "pointercancel"]) place.addEventListener(name, release);
  show(event);
});

for (const gesture of ["pointerdown", "keydown"]) {
  document.addEventListener(gesture, () => player.unlock(), { capture: true, once: true });
}
document.addEventListener("visibilitychange", () => {
  if (!document.hidden && player.context && !player.paused) player.context.resume();
});
