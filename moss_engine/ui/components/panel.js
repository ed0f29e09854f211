// Fills the status panel from the live player's state, at most ten times a second.

const SHOWN_IDS = 240;
const SIGNS = { "": "∅", " ": "␣", "\n": "↵", "\n\n": "↵↵", "\t": "⇥" };
const SOMETIMES = ["listened", "brain", "sentence"]; // stages of those who talk to it
const roll = element.querySelector(".ids-roll");
let shownRun = null;
let shownIds = 0;

// Times of one request in milliseconds since the click. The server's clock is placed between the bounds that the
// messages give: accepted after the click, and every message sent before it arrived.
function waterfall(live) {
  const { stages } = live;
  if (stages.accepted === undefined) return null;
  const [low, high] = [live.offsetLowMs - live.clickMs, live.offsetHighMs - live.clickMs];
  const offset = (low + high) / 2;
  const at = (name) => (stages[name] === undefined ? null : offset + 1000 * stages[name]);
  const since = (ms) => (ms === null ? null : ms - live.clickMs);
  const ear = live.firstMs === null ? null : since(live.firstMs) + live.latencyMs;
  return {
    uncertainty: (high - low) / 2,
    total: ear,
    spans: {
      listened: [at("said"), at("understood")], brain: [offset, at("first_token")], sentence: [at("first_token"), at("first_sentence")],
      sent: [0, at("received")], prepare: [at("received"), offset], queue: [at("first_sentence") ?? offset, at("started")], prefill: [at("started"), at("first_row")],
      codes: [at("first_row"), at("first_chunk")], way: [at("first_chunk"), since(live.firstPcmMs)],
      buffer: [since(live.firstPcmMs), ear],
    },
  };
}

function showWaterfall(live) {
  const fall = waterfall(live);
  const before = otherThan(live)?.fall;
  const ends = [fall, before].flatMap((shown) => (shown ? Object.values(shown.spans).map(([, end]) => end ?? 0) : []));
  const scale = Math.max(1, ...ends);
  for (const row of element.querySelectorAll(".fall-row")) {
    const [start, end] = fall ? fall.spans[row.dataset.stage] : [null, null];
    const known = start !== null && end !== null;
    row.hidden = !known && SOMETIMES.includes(row.dataset.stage);
    const [bar, under] = row.querySelectorAll("i");
    place(bar, start, end, scale);
    place(under, ...(before?.spans[row.dataset.stage] ?? [null, null]), scale);
    row.querySelector("b").textContent = known ? `${number(end - start, end - start < 9.95 ? 1 : 0)} ms` : NONE;
    if (fall && ["sent", "way"].includes(row.dataset.stage)) row.querySelector("b").title = `± ${number(fall.uncertainty, 1)} ms`;
  }
  element.querySelector(".fall-total").textContent = fall && fall.total !== null ? `${number(fall.total, 0)} ms to the ear` : "";
}

function place(bar, start, end, scale) {
  const known = start !== null && end !== null;
  bar.style.marginLeft = known ? `${(100 * Math.max(0, start)) / scale}%` : "0";
  bar.style.width = known ? `${Math.max(0.6, (100 * (end - start)) / scale)}%` : "0";
}

function showIds(live) {
  if (live.run !== shownRun) {
    shownRun = live.run;
    shownIds = 0;
    roll.replaceChildren();
  }
  const fresh = live.ids.slice(Math.max(shownIds, live.ids.length - SHOWN_IDS));
  const against = otherThan(live)?.ids;
  const first = live.ids.length - fresh.length;
  shownIds = live.ids.length;
  if (fresh.length === 0) return;
  const following = roll.scrollTop + roll.clientHeight >= roll.scrollHeight - 24;
  roll.append(...fresh.map((id, i) => {
    const chip = document.createElement("span");
    chip.className = id < 0 ? "code" : live.pieces[id].startsWith("<|") ? "mark" : "text";
    if (against && against[first + i] !== id) chip.classList.add("differs");
    const piece = live.pieces[id];
    chip.textContent = id < 0 ? ~id : Object.hasOwn(SIGNS, piece) ? SIGNS[piece] : piece.trim();
    chip.title = id < 0 ? `speech code ${~id}` : `text id ${id}: ${JSON.stringify(piece)}`;
    return chip;
  }));
  while (roll.childElementCount > SHOWN_IDS) roll.firstChild.remove();
  if (following) roll.scrollTop = roll.scrollHeight;
}

const explain = element.querySelector(".explain");
explain.addEventListener("click", () => {
  explain.setAttribute("aria-expanded", element.classList.toggle("explained"));
  if (element.classList.contains("folded")) fold(false);
});

const chooser = element.querySelector(".replay-file");
element.querySelector(".open-replay").addEventListener("click", () => chooser.click());
chooser.addEventListener("change", () => {
  const [detail] = chooser.files;
  if (detail) document.dispatchEvent(new CustomEvent("openreplay", { detail }));
  chooser.value = "";
});

// Open by default where there is room; the choice is remembered.
const ROOM_PX = 1000;
const opener = element.querySelector(".details-open");
function fold(folded) {
  element.classList.toggle("folded", folded);
  opener.setAttribute("aria-expanded", !folded);
}
const chosen = recall("moss-details");
fold(chosen ? chosen === "folded" : innerWidth < ROOM_PX);
opener.addEventListener("click", () => {
  fold(!element.classList.contains("folded"));
  note("moss-details", element.classList.contains("folded") ? "folded" : "open");
});

document.addEventListener("liveaudio", ({ detail }) => {
  element.classList.toggle("begun", detail.run !== null);
  showFigures(detail);
  showWaterfall(detail);
  showIds(detail);
});
