// A reply as one file that needs nothing else: sound, captions in step with it, figures, waterfall and tokens.

const SHARED_CSS = `:root { color-scheme: light dark; --ink: light-dark(#18211b, #e6ede7); --quiet: light-dark(#56635b, #a0b0a6); --line: light-dark(#dfe5df, #25302a);
  --moss: light-dark(#2f6f4a, #7fcf9b); --card: light-dark(#fdfefb, #131a16); --paper: light-dark(#f3f5f0, #0c110e); }
body { margin: 0; background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 820px; margin: 24px auto; padding: 24px 28px; background: var(--card); border: 1px solid var(--line); border-radius: 20px; }
h1 { margin: 0 0 16px; font-size: 15px; font-weight: 600; color: var(--quiet); } h2 { font-size: 14px; margin: 24px 0 8px; color: var(--quiet); }
#text { font-size: 26px; line-height: 1.36; margin: 0 0 16px; } #text span { color: var(--quiet); } #text span.said { color: var(--ink); }
audio { width: 100%; } dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(150px, 1fr)); gap: 10px 20px; margin: 0; }
dt { font-size: 12.5px; color: var(--quiet); } dd { margin: 0; font-weight: 600; } table { border-collapse: collapse; width: 100%; } td { padding: 2px 8px 2px 0; font-size: 13px; }
td:nth-child(2) { width: 60%; } td i { display: block; height: 9px; border-radius: 3px; background: var(--moss); } td:last-child { text-align: right; }
#tokens { display: flex; flex-wrap: wrap; gap: 3px; font: 11.5px ui-monospace, monospace; } #tokens span { border: 1px solid var(--line); border-radius: 5px; padding: 1px 5px; }
#tokens .text { border-color: var(--moss); }`;
const SHARED_JS = `const reply = JSON.parse(document.getElementById("reply").textContent), audio = document.querySelector("audio");
const words = reply.words.map(({ at, text }) => { const span = document.createElement("span"); span.textContent = text; document.getElementById("text").append(span); return { at, span }; });
const follow = () => { const now = audio.ended ? Infinity : audio.currentTime; for (const { at, span } of words) span.classList.toggle("said", audio.played.length === 0 || at < now); };
const fill = (place, make, items) => document.getElementById(place).append(...items.map(make));
const part = (tag, text, name) => Object.assign(document.createElement(tag), { textContent: text, className: name ?? "" });
fill("figures", ([name, value]) => { const box = part("div", ""); box.append(part("dt", name), part("dd", value)); return box; }, reply.figures);
fill("stages", ([name, left, width, value]) => { const row = part("tr", ""), bar = part("td", ""), line = part("i", ""); line.style.cssText = "margin-left:" + left + ";width:" + width; bar.append(line); row.append(part("td", name), bar, part("td", value)); return row; }, reply.stages);
fill("tokens", ([kind, text]) => part("span", text, kind), reply.tokens);
for (const name of ["timeupdate", "seeked", "ended", "play"]) audio.addEventListener(name, follow);
setInterval(() => audio.paused || follow(), 50); follow();`;

function dataUrl(blob) {
  return new Promise((resolve) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.readAsDataURL(blob);
  });
}

// What the panel shows of this reply, as [name, value] and [name, left, width, value].
function panelFigures() {
  const text = (box, selector) => box.querySelector(selector).textContent.trim();
  const tiles = [...document.querySelectorAll("#panel .tile")].map((box) => [text(box, ".tile-name"), `${text(box, "b")} ${text(box, "small")}`.trim()]);
  const facts = [...document.querySelectorAll("#panel .facts div")].map((box) => [text(box, "dt"), text(box, "dd")]);
  const stages = [...document.querySelectorAll("#panel .fall-row:not([hidden])")].map((row) => [text(row, "span"), ...["marginLeft", "width"].map((name) => row.querySelector("i").style[name]), text(row, "b")]);
  return { figures: [...tiles, ...facts], stages };
}

async function sharedFile() {
  const words = captions.segments.flatMap(({ start, words: inside }, i) => {
    const end = captions.segments[i + 1]?.start ?? live.total;
    return inside.map(({ element: word, at }) => ({ at: (start + at * (end - start)) / rate, text: word.textContent }));
  });
  const tokens = live.ids.map((id) => (id < 0 ? ["code", ~id] : ["text", live.pieces[id]]));
  const data = JSON.stringify({ words, tokens, ...panelFigures() }).replaceAll("<", "\\u003c");
  const sound = await dataUrl(wavOf(pcm, rate));
  const policy = "default-src 'none'; media-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'";
  return `<!doctype html><html lang="${document.documentElement.lang}"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="${policy}"><title>MOSS-Speech Live</title><style>${SHARED_CSS}</style></head><body><main>
<h1>MOSS-Speech Live · ${new Date().toISOString().slice(0, 16).replace("T", " ")} UTC</h1><p id="text"></p><audio controls src="${sound}"></audio>
<h2>${SHARED_SAYS.figures()}</h2><dl id="figures"></dl><h2>${SHARED_SAYS.stages()}</h2><table><tbody id="stages"></tbody></table>
<h2>${SHARED_SAYS.tokens()}</h2><div id="tokens"></div></main>
<script id="reply" type="application/json">${data}</script><script>${SHARED_JS}</script></body></html>`;
}

// The headings are the panel's own, in the language that it speaks.
const heading = (selector) => document.querySelector(`#panel ${selector}`).firstChild.textContent.trim();
const SHARED_SAYS = {
  figures: () => document.querySelector("#panel .details-open").textContent.trim(),
  stages: () => heading(".fall h3"), tokens: () => heading(".ids h3"),
};

async function share() {
  give(new Blob([await sharedFile()], { type: "text/html" }), `moss-speech-${live.run || "reply"}.html`);
}
