// The figures of a reply. An entry of TILES is all that a tile needs: where its value comes from, what it means, and for a
// stage the least time that this machine could take for it.

const NONE = "–";
const RTF_SINCE_S = 2; // of sound: before, the time to the first of it outweighs the rest
const SENT_AS = { pcm: "s of exact PCM", opus: "s of Opus" };

// `only` tells whether there is such a tile at all. `show` gives the value, and where they change the words behind it and whether it is bad. `least` gives the milliseconds
// that the stage takes and at least must take. MEANINGS are the server's own figures, by name.
const TILES = [
  {
    key: "heard_after", name: "Heard after", unit: "ms", where: "browser",
    meaning: "From your click or key press, or hands-free from the moment at which your turn was found to be over, to the first sample leaving the audio graph, plus the output latency that the browser reports.",
    show: (live) => [number(live.heardAfterMs, 0)],
  },
  server("ttfa_ms", "First audio", "ms"),
  {
    ...server("prefill_ms", "Prefill", "ms"),
    least: ({ figures, limits }) => [figures.prefill_ms, stepMs(limits, figures.num_prompt_rows - figures.num_cached_rows, figures.num_cached_rows)],
  },
  server("queue_wait_ms", "Queue", "ms"),
  { ...server("rtf", "RTF", "", 2), bad: ({ figures }) => figures.rtf >= 1 && figures.audio_s >= RTF_SINCE_S },
  { ...server("audio_rows_per_s", "Speech rows", "/s", 0), least: ({ figures, limits }) => rowMs(figures.audio_rows_per_s, figures, limits) },
  { ...server("text_rows_per_s", "Text rows", "/s", 0), least: ({ figures, limits }) => rowMs(figures.text_rows_per_s, figures, limits) },
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
    show: ({ figures }) => [number(figures.num_prompt_rows, 0), figures.num_cached_rows ? `rows, ${figures.num_cached_rows} cached` : "rows"],
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
  return { key, name, unit, where: "server", meaning: MEANINGS[key], show: ({ figures }) => [number(figures[key], digits ?? (figures[key] < 10 ? 1 : 0))] };
}

function number(value, digits) {
  return value === null || value === undefined ? NONE : value.toFixed(digits);
}

// The least time of one step: the weights and the cached rows are read once, and every new row is multiplied.
function stepMs(limits, rows, cached) {
  if (!limits || !(rows > 0)) return null;
  const reading = (limits.weight_bytes + cached * limits.row_bytes) / limits.read_bytes_per_s;
  return 1000 * Math.max(reading, (rows * limits.row_operations) / limits.operations_per_s);
}

function rowMs(rowsPerS, figures, limits) {
  return [rowsPerS ? 1000 / rowsPerS : null, stepMs(limits, 1, (figures.num_prompt_rows ?? 0) + figures.num_rows / 2)];
}

function part(tag, className, text = "") {
  const made = document.createElement(tag);
  made.className = className;
  made.textContent = text;
  return made;
}

function cellOf(tile) {
  const box = part("div", "tile");
  box.dataset.key = tile.key;
  const value = part("span", "tile-value");
  value.append(part("b", "", NONE), part("small", "", tile.unit));
  const tip = part("span", "tip", tile.meaning);
  tip.id = `tip-${tile.key}`;
  box.append(part("span", "tile-name", tile.name), value);
  if (tile.least) {
    const gauge = part("span", "tile-gauge");
    gauge.append(part("i", ""), part("small", ""));
    gauge.hidden = true;
    box.append(gauge);
  }
  box.append(part("span", "tile-other"), part("span", "tile-where", tile.where), tip);
  return box;
}

const boxes = new Map(TILES.map((tile) => [tile.key, cellOf(tile)]));
element.querySelector(".tiles").append(...boxes.values());

function showFigures(live) {
  for (const tile of TILES) {
    const box = boxes.get(tile.key);
    const [text, note = tile.unit] = tile.show(live);
    box.hidden = Boolean(tile.only) && !tile.only(live);
    write(box.querySelector("b"), text);
    write(box.querySelector("small"), note);
    box.classList.toggle("none", text === NONE);
    box.classList.toggle("bad", Boolean(tile.bad?.(live)));
    if (tile.least) showGauge(box.querySelector(".tile-gauge"), ...tile.least(live));
  }
}

// How near a stage comes to what this machine could do: 100 % would be all of its reading, or all of its multiplying.
function showGauge(gauge, ms, least) {
  const known = Boolean(ms && least);
  gauge.hidden = !known;
  if (!known) return;
  const percent = Math.min(100, Math.round((100 * least) / ms));
  gauge.querySelector("i").style.setProperty("--share", `${percent}%`);
  write(gauge.querySelector("small"), `${percent} % of this machine's limit`);
  gauge.title = `At least ${number(least, least < 10 ? 2 : 0)} ms, as this machine reads and multiplies; it took ${number(ms, ms < 10 ? 2 : 0)} ms.`;
}
