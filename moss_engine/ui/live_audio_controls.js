// The player's own controls, and what the browser does to the sound by itself.

function pauseOrReplay() {
  if (live.phase === "speaking") {
    if (player.silent) player.resume();
    else player.pause();
    showSilence();
  } else {
    player.unlock();
    player.reset();
    clock = null;
    live.played = 0;
    live.again = true;
    for (const chunk of pcm) player.push(chunk.slice());
    player.end();
    phase("speaking");
  }
}

function save() {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(wavOf(pcm, rate));
  link.download = `moss-speech-${live.run || "reply"}.wav`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

$(".la-pause").addEventListener("click", pauseOrReplay);
$(".la-save").addEventListener("click", save);
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

for (const gesture of ["pointerdown", "keydown"]) {
  document.addEventListener(gesture, () => player.unlock(), { capture: true, once: true });
}
document.addEventListener("visibilitychange", () => {
  if (!document.hidden && player.context && !player.paused) player.context.resume();
});
