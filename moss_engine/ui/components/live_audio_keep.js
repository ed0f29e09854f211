// What of a reply can be taken away, in one menu: its sound, a page to send, and a replay file, from which the same sound
// is made again without the network. A replay file is opened by dropping it anywhere on the page, or by the panel's button.

const keeping = $(".la-keeping");
const menu = $(".la-menu");

function showMenu(shown) {
  menu.hidden = !shown;
  $(".la-save").setAttribute("aria-expanded", shown);
}
$(".la-save").addEventListener("click", () => {
  showMenu(menu.hidden);
  if (!menu.hidden) menu.querySelector("button:not(:disabled)")?.focus();
});
const elsewhere = (target) => !menu.hidden && target && !keeping.contains(target);
document.addEventListener("pointerdown", ({ target }) => elsewhere(target) && showMenu(false));
keeping.addEventListener("focusout", ({ relatedTarget }) => elsewhere(relatedTarget) && showMenu(false));
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || menu.hidden) return;
  event.stopImmediatePropagation(); // it closes the menu, and stops nothing
  showMenu(false);
  $(".la-save").focus();
}, true);
for (const [name, taken] of [[".la-wav", save], [".la-share", share], [".la-keep", keepReplay]]) {
  $(name).addEventListener("click", () => {
    showMenu(false);
    $(".la-save").focus();
    taken();
  });
}

// Rows, text and settings, not the sound: that follows from them.
function keepReplay() {
  const text = captions.segments.map((segment) => [segment.start, segment.text]);
  const { ids, parts, pauses, stages, figures } = live;
  const kept = JSON.stringify({ ...live.recipe, parts, pauses, ids, text, stages, figures });
  if (kept.length > props.replay_bytes) complain(`This reply is too long for a replay file, which holds ${props.replay_bytes / 1024} kB; save its sound.`);
  else give(new Blob([kept], { type: "application/json" }), `moss-speech-${live.run}.replay.json`);
}

// Looked at by the server first, as a refusal must not silence what is heard.
let file = "";
async function openReplay(chosen) {
  if (chosen.size > props.replay_bytes) {
    complain(`The file is larger than ${props.replay_bytes / 1024} kB, which no replay file is; choose another one.`);
    return;
  }
  player.unlock();
  file = await chosen.text();
  door.send({ type: "replay.check", file });
}

function considered(sentence) {
  if (sentence) complain(sentence);
  else ask({ type: "replay.create", file }, { recorded: true });
}

const isReplay = ({ name, type }) => type === "application/json" || /\.json$/i.test(name);
document.addEventListener("dragover", (event) => event.dataTransfer?.types.includes("Files") && event.preventDefault());
document.addEventListener("drop", (event) => {
  const dropped = [...(event.dataTransfer?.files ?? [])].find(isReplay);
  if (!dropped) return;
  event.preventDefault();
  event.stopImmediatePropagation();
  openReplay(dropped);
}, true);
document.addEventListener("openreplay", ({ detail }) => openReplay(detail));
