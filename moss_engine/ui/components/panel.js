// Fills the status panel from the live player's state, at most ten times a second.

const SHOWN_IDS = 240;
const RTF_SINCE_S = 2; // of sound: before, the time to the first of it outweighs the rest
const SIGNS = { "": "∅", " ": "␣", "\n": "↵", "\n\n": "↵↵", "\t": "⇥" };
const SENT_AS = { pcm: "s of exact PCM", opus: "s of Opus" };
const cell = (key) => element.querySelector(`[data-key="${key}"]`);
const NONE = "–";
const SOMETIMES = ["listened", "brain", "sentence"]; // stages of those who talk to it
const roll = element.querySelector(".ids-roll");
let shownRun = null;
let shownIds = 0;

function number(value, digits) {
  return value === null || value === undefined ? NONE : value.toFixed(digits);
}

function put(key, text, note) {
  const box = cell(key);
  const value = box.querySelector("b");
  if (value.textContent !== text) value.textContent = text;
  box.classList.toggle("none", text === NONE);
  if (note !== undefined) box.querySelector("small").textContent = note;
}

function showFigures(live) {
  const { figures, pool } = live;
  put("heard_after", number(live.heardAfterMs, 0));
  for (const key of ["ttfa_ms", "prefill_ms", "queue_wait_ms"]) put(key, number(figures[key], figures[key] < 10 ? 1 : 0));
  put("rtf", number(figures.rtf, 2));
  for (const key of ["audio_rows_per_s", "text_rows_per_s"]) put(key, number(figures[key], 0));
  put("buffered", number(live.total ? live.buffered / live.rate : null, 1), SENT_AS[live.sound]);
  put("underruns", live.total ? String(live.underruns) : NONE, live.underruns ? `${Math.round((1000 * live.starved) / live.rate)} ms` : "");
  put("prompt", number(figures.num_prompt_rows, 0), figures.num_cached_rows ? `rows, ${figures.num_cached_rows} cached` : "rows");
  put("seed", live.seed === null ? NONE : String(live.seed));
  if (pool.used !== undefined) put("blocks", `${pool.used} / ${pool.cached + pool.free}`, pool.cached ? `${pool.cached} kept` : "");
  cell("underruns").classList.toggle("bad", live.underruns > 0);
  cell("rtf").classList.toggle("bad", figures.rtf >= 1 && figures.audio_s >= RTF_SINCE_S);
}

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
    chip.textContent = id < 0 ? ~id : SIGNS[piece] ?? piece.trim();
    chip.title = id < 0 ? `speech code ${~id}` : `text id ${id}: ${JSON.stringify(piece)}`;
    return chip;
  }));
  while (roll.childElementCount > SHOWN_IDS) roll.firstChild.remove();
  if (following) roll.scrollTop = roll.scrollHeight;
}

for (const box of element.querySelectorAll(".tile")) put(box.dataset.key, NONE);

const explain = element.querySelector(".explain");
explain.addEventListener("click", () => {
  explain.setAttribute("aria-expanded", element.classList.toggle("explained"));
  if (element.classList.contains("folded")) fold(false);
});

// Open by default where there is room; the choice is remembered.
const ROOM_PX = 1000;
const opener = element.querySelector(".details-open");
function fold(folded) {
  element.classList.toggle("folded", folded);
  opener.setAttribute("aria-expanded", !folded);
}
const chosen = localStorage.getItem("moss-details");
fold(chosen ? chosen === "folded" : innerWidth < ROOM_PX);
opener.addEventListener("click", () => {
  fold(!element.classList.contains("folded"));
  localStorage.setItem("moss-details", element.classList.contains("folded") ? "folded" : "open");
});

document.addEventListener("liveaudio", ({ detail }) => {
  element.classList.toggle("begun", detail.run !== null);
  showFigures(detail);
  showWaterfall(detail);
  showIds(detail);
});
