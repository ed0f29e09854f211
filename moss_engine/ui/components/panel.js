// The status panel, filled from the live player's state, at most ten times a second.

import { part, write } from "./common.js";

let element, roll; // since it was mounted
const boxes = new Map(); // of every tile

// A figure of a reply: an entry of TILES is all that a tile needs: where its value comes from, and what it means.

const NONE = "–";
const COUNTED_MS = 1000;
const RTF_SINCE_S = 2; // of sound: before, the time to the first of it outweighs the rest
const SENT_AS = { pcm: "s of exact PCM", opus: "s of Opus" };

// `only` tells whether there is such a tile at all. `show` gives the value, and where they change the words behind it and whether it is bad. What the server's own figures mean, it says itself.
const TILES = [
  {
    key: "heard_after", name: "Heard after", unit: "ms", where: "browser",
    meaning: "From your click or key press, or hands-free from the end of your last word, to the first sample leaving the audio graph, plus the output latency that the browser reports.",
    show: (live) => [number(live.heardAfterMs, 0)],
  },
  server("ttfa_ms", "First audio", "ms"),
  server("prefill_ms", "Prefill", "ms"),
  server("queue_wait_ms", "Queue", "ms"),
  { ...server("rtf", "RTF", "", 2), bad: ({ figures }) => figures.rtf >= 1 && figures.audio_s >= RTF_SINCE_S },
  server("audio_rows_per_s", "Speech rows", "/s", 0),
  server("text_rows_per_s", "Text rows", "/s", 0),
  {
    ...server("codec_ms", "Codec", "ms"),
    show: ({ figures }) => [number(figures.codec_ms, 1), figures.codec_replies > 1 ? `ms for ${number(figures.codec_replies, 1)} replies` : "ms"],
  },
  {
    key: "buffered", name: "Buffered", unit: "s", where: "browser",
    meaning: "Sound that has arrived in the browser and was not played yet; as PCM, which is every sample as it was made, or compressed as Opus where the connection is too slow for that.",
    show: (live) => [number(live.total ? live.buffered / live.rate : null, 1), SENT_AS[live.sound]],
  },
  {
    key: "underruns", name: "Underruns", unit: "", where: "browser",
    meaning: "How often the browser ran out of sound before the reply was over, with the silence that this put in.",
    show: (live) => [live.total ? String(live.underruns) : NONE, live.underruns ? `${Math.round((1000 * live.starved) / live.rate)} ms` : ""],
    bad: (live) => live.underruns > 0,
  },
  {
    key: "prompt", name: "Prompt", unit: "rows", where: "server",
    meaning: "Rows of the prompt, and how many of them were found in the prefix cache and not computed again.",
    show: ({ figures: { num_prompt_rows: rows, num_cached_rows: cached } }) => [rows ? number(rows, 0) : NONE, cached ? `${cached} cached, ${rows - cached} new` : "rows"],
  },
  {
    key: "blocks", name: "KV used / free", unit: "", where: "server",
    meaning: "Blocks of the key and value pool, the model's memory of what was said: used by running replies, and free for others; some of the free ones are kept for later turns until they are needed.",
    show: ({ pool }) => (pool.used === undefined ? [NONE] : [`${pool.used} / ${pool.cached + pool.free}`, pool.cached ? `${pool.cached} kept` : ""]),
  },
  {
    key: "seed", name: "Seed", unit: "", where: "server",
    meaning: "The same seed and settings give the same rows again, in any batch.",
    show: (live) => [live.seed === null ? NONE : String(live.seed)],
  },
  {
    key: "replica", name: "Replica", unit: "", where: "server", only: ({ placed }) => Boolean(placed),
    meaning: "Which copy of the service makes this reply: the one that keeps this conversation's earlier turns, or another one because that is full or gone; how often the reply went on elsewhere; and how many replies each copy makes now, of how many.",
    show: ({ placed, pool }) => (placed ? [placed.replica, [placed.is_preferred ? "as before" : "new to it", ...moved(placed), ...loads(pool)].join(" · ")] : [NONE]),
  },
];

function moved({ num_resumes: times }) {
  return times ? [`moved ${times}×`] : [];
}

function loads({ replicas = [] }) {
  return replicas.map((one) => `${one.name} ${one.running + one.waiting}/${one.places}`);
}

// A figure of the server's, by its own name and meaning.
function server(key, name, unit, digits) {
  return { key, name, unit, where: "server", show: ({ figures }) => [number(figures[key], digits ?? (figures[key] < 10 ? 1 : 0))] };
}

function number(value, digits) {
  return value === null || value === undefined ? NONE : value.toFixed(digits);
}

function cellOf(tile) {
  const box = part("div", "tile");
  box.dataset.key = tile.key;
  box.title = tile.meaning;
  const value = part("span", "tile-value");
  value.append(part("b", "", NONE), part("small", "", tile.unit));
  box.append(part("span", "tile-name", tile.name), value);
  box.append(part("span", "tile-where", tile.where), part("span", "tip", tile.meaning));
  return box;
}

function showFigures(live) {
  for (const tile of TILES) {
    const box = boxes.get(tile.key);
    const [text, note = tile.unit] = tile.show(live);
    box.hidden = Boolean(tile.only) && !tile.only(live);
    write(box.querySelector("b"), text);
    write(box.querySelector("small"), note);
    box.classList.toggle("none", text === NONE);
    box.classList.toggle("bad", Boolean(tile.bad?.(live)));
  }
}

const SHOWN_IDS = 100; // the last ones: twice what is in sight
const SIGNS = { "": "∅", " ": "␣", "\n": "↵", "\n\n": "↵↵", "\t": "⇥" };
const SOMETIMES = ["listened", "brain", "sentence"]; // stages of those who talk to it
let shownRun = null;
let shownIds = 0;

// Times of one request in milliseconds since the click. The server's clock is placed between the bounds that the
// messages give: accepted after the click, and every message sent before it arrived.
export function waterfall(live) {
  const { stages } = live;
  if (stages.accepted === undefined) return null;
  const [low, high] = [live.offsetLowMs - live.clickMs, live.offsetHighMs - live.clickMs];
  const offset = low > high ? high : (low + high) / 2;
  const at = (name) => (stages[name] === undefined ? null : offset + 1000 * stages[name]);
  const since = (ms) => (ms === null ? null : ms - live.clickMs);
  const ear = live.firstMs === null ? null : since(live.firstMs) + live.latencyMs;
  const spans = {
    listened: [at("said"), at("understood")], brain: [offset, at("first_token")], sentence: [at("first_token"), at("first_sentence")],
    sent: [0, at("received")], prepare: [at("received"), offset], queue: [at("first_sentence") ?? offset, at("started")], prefill: [at("started"), at("first_row")],
    codes: [at("first_row"), at("first_chunk")], way: [at("first_chunk"), since(live.firstPcmMs)],
    buffer: [since(live.firstPcmMs), ear],
  };
  // What was known before it was waited for took no time.
  for (const span of Object.values(spans)) if (span[0] !== null && span[1] !== null) span[1] = Math.max(...span);
  return { uncertainty: Math.max(0, high - low) / 2, total: ear, spans };
}

function showWaterfall(live) {
  const fall = waterfall(live);
  const scale = Math.max(1, ...(fall ? Object.values(fall.spans).map(([, end]) => end ?? 0) : []));
  for (const row of element.querySelectorAll(".fall-row")) {
    const [start, end] = fall ? fall.spans[row.dataset.stage] : [null, null];
    const known = start !== null && end !== null;
    row.hidden = !known && SOMETIMES.includes(row.dataset.stage);
    const bar = row.querySelector("i");
    bar.style.marginLeft = known ? `${(100 * Math.max(0, start)) / scale}%` : "0";
    bar.style.width = known ? `${Math.max(0.6, (100 * (end - start)) / scale)}%` : "0";
    row.querySelector("b").textContent = known ? `${number(end - start, end - start < 9.95 ? 1 : 0)} ms` : NONE;
    if (fall && ["sent", "way"].includes(row.dataset.stage)) row.querySelector("b").title = `± ${number(fall.uncertainty, 1)} ms`;
  }
  element.querySelector(".fall-total").textContent = fall && fall.total !== null ? `${number(fall.total, 0)} ms to the ear` : "";
}

function showIds(live) {
  if (live.run !== shownRun) {
    shownRun = live.run;
    shownIds = 0;
    roll.replaceChildren();
  }
  const fresh = live.ids.slice(Math.max(shownIds, live.ids.length - SHOWN_IDS));
  shownIds = live.ids.length;
  if (fresh.length === 0) return;
  const following = roll.scrollTop + roll.clientHeight >= roll.scrollHeight - 24;
  roll.append(...fresh.map((id) => {
    const piece = live.pieces[id];
    const chip = id < 0 ? part("span", "code", ~id)
      : part("span", piece.startsWith("<|") ? "mark" : "text", Object.hasOwn(SIGNS, piece) ? SIGNS[piece] : piece.trim());
    chip.title = id < 0 ? `speech code ${~id}` : `text id ${id}: ${JSON.stringify(piece)}`;
    return chip;
  }));
  while (roll.childElementCount > SHOWN_IDS) roll.firstChild.remove();
  if (following) roll.scrollTop = roll.scrollHeight;
}

export function mount(place, { meanings }) {
  element = place;
  roll = element.querySelector(".ids-roll");
  for (const tile of TILES) boxes.set(tile.key, cellOf({ meaning: meanings[tile.key], ...tile }));
  element.querySelector(".tiles").append(...boxes.values());
  const explain = element.querySelector(".explain");
  explain.addEventListener("click", () => {
    explain.setAttribute("aria-expanded", element.classList.toggle("explained"));
  });
  function show(live) {
    element.classList.toggle("begun", live.run !== null);
    showFigures(live);
    showWaterfall(live);
    showIds(live);
  }
  document.addEventListener("liveaudio", ({ detail }) => document.body.dataset.view === "engine" && show(detail));
  window.addEventListener("engine", () => show(window.liveAudio.state));
  setInterval(() => {
    const { door } = window.liveAudio;
    if (door.isOpen && !document.hidden && document.body.dataset.view === "engine") door.send({ type: "pool.read" });
  }, COUNTED_MS);
  show(window.liveAudio.state);
}
