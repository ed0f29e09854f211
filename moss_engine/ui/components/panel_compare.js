// Two replies side by side: A, which was kept, and the one that is shown, B.

const versus = element.querySelector(".versus");
const keeper = element.querySelector(".compare");
const other = new Audio();
let keptReply = null; // {run, text, ids, fall, tiles: {key: text}, url}

function keepReply() {
  const live = window.liveAudio.state;
  drop();
  const tiles = Object.fromEntries([...element.querySelectorAll(".tile")].map((box) => [box.dataset.key, figureOf(box)]));
  const url = live.total ? URL.createObjectURL(window.liveAudio.wav()) : "";
  keptReply = { run: live.run, text: window.liveAudio.text.trim(), ids: [...live.ids], fall: waterfall(live), tiles, url };
  other.src = url;
  compareWith(live);
}

function drop() {
  if (keptReply?.url) URL.revokeObjectURL(keptReply.url);
  other.pause();
  keptReply = null;
  compareWith(window.liveAudio.state);
}

function figureOf(box) {
  return [box.querySelector("b"), box.querySelector("small")].map((part) => part.textContent).join(" ").trim();
}

// The kept reply, while another one is shown.
function otherThan(live) {
  return keptReply && keptReply.run !== live.run ? keptReply : null;
}

function sameUpTo(ours, theirs) {
  const at = ours.findIndex((id, i) => id !== theirs[i]);
  return at < 0 ? Math.min(ours.length, theirs.length) : at;
}

function compareWith(live) {
  const against = otherThan(live);
  versus.hidden = !keptReply;
  keeper.hidden = Boolean(keptReply) || !live.ended || live.run === null;
  element.classList.toggle("comparing", Boolean(against));
  for (const box of element.querySelectorAll(".tile")) box.querySelector(".tile-other").textContent = against ? `A ${against.tiles[box.dataset.key]}` : "";
  if (!keptReply) return;
  versus.querySelector(".versus-text").textContent = keptReply.text || "–";
  versus.querySelector(".versus-play").disabled = !keptReply.url;
  const same = against ? sameUpTo(live.ids, against.ids) : 0;
  const all = against && live.ended && same === live.ids.length && same === against.ids.length;
  const words = !against ? "Ask again, and the next reply stands beside this one." : all ? "All tokens are the same." : `The first ${same} tokens are the same.`;
  write(versus.querySelector(".versus-same"), words);
}

keeper.addEventListener("click", keepReply);
versus.querySelector(".versus-end").addEventListener("click", drop);
versus.querySelector(".versus-play").addEventListener("click", () => {
  if (!other.paused) return other.pause();
  window.liveAudio.hold();
  other.currentTime = 0;
  other.play().catch(() => other.pause());
});
for (const name of ["play", "pause", "ended"]) {
  other.addEventListener(name, () => versus.querySelector(".versus-play").setAttribute("aria-pressed", !other.paused));
}
document.addEventListener("liveaudio", ({ detail }) => {
  if (detail.phase === "speaking" && !other.paused && !window.liveAudio.player.silent) other.pause();
  compareWith(detail);
});
