// The conversation. `element`, `props` and `watch` come from gr.HTML. One audio element plays every clip.

const list = element.querySelector(".tr-list");
const mould = element.querySelector("template");
const SAYS = { user: "You", assistant: "Answer", reading: "Read aloud" };
const sound = new Audio();
let shown = []; // the entries as JSON, in order
let playing = null; // the clip that is heard

function clock(seconds) {
  const whole = Math.max(1, Math.round(seconds));
  return `${Math.floor(whole / 60)}:${String(whole % 60).padStart(2, "0")}`;
}

function part(tag, className, text) {
  const made = document.createElement(tag);
  made.className = className;
  made.textContent = text;
  return made;
}

// What is read aloud is one thing: the text, its sound, and what was said differently. Anything else is a talk of two.
const letters = (text) => text.toLowerCase().replace(/[^\p{L}\p{N}]+/gu, "");
function gather(entries) {
  const items = [];
  for (const entry of entries) {
    const asked = items.at(-1);
    if (entry.role === "user") items.push({ ...entry, role: entry.reads ? "reading" : "user" });
    else if (!entry.reads || asked?.role !== "reading") items.push({ ...entry });
    else items[items.length - 1] = { ...asked, ...entry, role: "reading", text: asked.text, spoken: sameWords(asked.text, entry) ? "" : entry.text };
  }
  return items;
}

function sameWords(text, { text: spoken, note }) {
  const [typed, said] = [letters(text), letters(spoken)];
  return typed === said || (Boolean(note) && typed.startsWith(said)); // what was stopped is said as far as it came
}

function draw(entry) {
  const item = part("li", `tr-${entry.role}`, "");
  item.append(part("span", "tr-who", `${SAYS[entry.role]}:`));
  for (const [name, words] of [["tr-text", entry.text], ["tr-spoken", entry.spoken && `spoken as “${entry.spoken}”`]]) {
    if (!words) continue;
    const text = part("p", name, words);
    text.dir = "auto";
    item.append(text);
  }
  if (entry.clip) item.append(clipOf(entry.clip));
  if (entry.note) item.append(part("p", "tr-note", entry.note));
  return item;
}

function clipOf({ file, seconds, bars }) {
  const clip = mould.content.firstElementChild.cloneNode(true);
  const [svg, at] = [clip.querySelector(".clip-wave svg"), clip.querySelector(".clip-at")];
  svg.setAttribute("viewBox", `0 0 ${4 * bars.length} 100`);
  const path = bars.map((height, i) => `M${4 * i} ${50 - Math.max(4, height) / 2}h2.4v${Math.max(4, height)}h-2.4z`).join("");
  for (const drawn of svg.children) drawn.setAttribute("d", path);
  clip.querySelector(".clip-save").href = file.url;
  clip.querySelector(".clip-time").textContent = clock(seconds);
  clip.querySelector(".clip-play").addEventListener("click", () => (playing === clip && !sound.paused ? sound.pause() : play()));
  at.addEventListener("input", () => {
    clip.style.setProperty("--at", at.value);
    if (playing === clip) sound.currentTime = at.value * seconds;
  });
  function play() {
    if (playing !== clip) {
      rest();
      playing = clip;
      sound.src = file.url;
      sound.currentTime = at.value < 1 ? at.value * seconds : 0;
    }
    window.liveAudio.hold();
    sound.play().catch(() => rest());
  }
  return clip;
}

// The clip that was heard, back at its beginning.
function rest() {
  sound.pause();
  if (playing) follow(playing, 0);
  playing = null;
}

function follow(clip, at) {
  clip.style.setProperty("--at", at);
  clip.querySelector(".clip-at").value = at;
}

function paint() {
  for (const clip of list.querySelectorAll(".clip")) {
    const heard = clip === playing && !sound.paused;
    clip.classList.toggle("clip-on", heard);
    clip.querySelector(".clip-play").setAttribute("aria-label", heard ? "Pause" : "Play");
  }
}

for (const name of ["play", "pause"]) sound.addEventListener(name, paint);
sound.addEventListener("timeupdate", () => playing && sound.duration && follow(playing, sound.currentTime / sound.duration));
sound.addEventListener("ended", rest);
// One voice at a time: a clip holds the reply, and a reply that begins or goes on ends the clip.
document.addEventListener("liveaudio", ({ detail }) => detail.phase === "speaking" && !sound.paused && !window.liveAudio.player.silent && sound.pause());

function take(told) {
  const entries = gather(told || []);
  const wanted = entries.map((entry) => JSON.stringify(entry));
  const longer = wanted.length > shown.length;
  wanted.forEach((text, i) => {
    if (text === shown[i]) return;
    const item = draw(entries[i]);
    if (playing && list.children[i]?.contains(playing)) rest();
    if (list.children[i]) list.children[i].replaceWith(item);
    else list.append(item);
  });
  while (list.children.length > wanted.length) {
    if (list.lastElementChild.contains(playing)) rest();
    list.lastElementChild.remove();
  }
  shown = wanted;
  element.classList.toggle("tr-begun", wanted.length > 0);
  if (longer || wanted.length === 0) element.scrollTop = element.scrollHeight;
}

element.tabIndex = 0;
element.setAttribute("role", "region");
element.setAttribute("aria-label", "Conversation");
watch("value", () => take(props.value));
take(props.value);
