// Asking and stopping: what the page calls, and what becomes of a question before its reply begins.

const open = new Map(); // replies whose last message has not come: run -> what is called when it has
let expected = -Infinity; // when somebody pressed something that will ask for a reply
let unwanted = false; // and Stop after it, before it had asked
let cut = ""; // the newest reply and how much of it was heard, where it was not heard whole
const EXPECTED_MS = 1000; // the longest that a press may take to become a question
const LAST_WORD_MS = 1500; // the longest that a last message is waited for
const typed = []; // questions that were taken out of the box and are not on their way yet

// A click or key press that asks for a reply: start sound inside the gesture and start the stopwatch. The value at
// `place` tells the server what was heard of the reply before, and the one behind it how this one is called; the one at
// `text`, where there is one, is what was in the box at the press, whatever is in it by now. A reply that still speaks
// falls silent, but all that is shown stays until the question is accepted.
// It resolves when the replies before have said their last word: of two at once, one message could replace the other's.
async function submit(values, place, { text = null, recorded = false } = {}) {
  noteCut();
  player.unlock();
  if (BUSY.includes(live.phase)) breakOff("stopped", true);
  const bytes = crypto.getRandomValues(new Uint8Array(4));
  const run = Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
  const question = text === null ? undefined : typed.shift();
  asked = { run, clickMs: performance.now(), seq: -1, before: live.phase, recorded, question };
  if (question !== undefined) values[text] = question;
  const way = soundWay(live);
  player.wait(way === "opus" ? SLOW_PREBUFFER_MS : null);
  [values[place], values[place + 1], values[place + 2]] = [cut, run, way];
  phase("sent");
  if (unwanted) setTimeout(() => trigger("unwanted"));
  expected = -Infinity;
  unwanted = false;
  document.dispatchEvent(new Event("asked"));
  const before = [...open.values()];
  const ended = new Promise((resolve) => open.set(run, { resolve })).then(() => open.delete(run));
  Object.assign(open.get(run), { ended });
  if (before.length > 0) {
    trigger("replaced");
    setTimeout(() => before.forEach(({ resolve }) => resolve()), LAST_WORD_MS);
    await Promise.all(before.map(({ ended }) => ended));
  }
  return values;
}

// The last message of a reply has come, or will not.
const close = (run) => open.get(run)?.resolve();

// A question that was taken out of the box is not asked: it goes back, or beside the box where another one replaced it.
function giveBack(question, replaced = false) {
  if (question !== undefined) document.dispatchEvent(new CustomEvent("unasked", { detail: { question, replaced } }));
}

// What the server has to know of a reply that another one replaces.
function told(values) {
  values[0] = cut;
  return values;
}

// A press was made that will call `submit` with this question in a moment. It does not once Gradio has lost the server: until the server is
// back and Gradio has loaded the page anew, no event goes out.
function expect(question) {
  const now = performance.now();
  typed.push(question);
  expected = now;
  unwanted = false;
  setTimeout(() => {
    if (expected !== now || unwanted) return;
    typed.splice(0).forEach((question) => giveBack(question));
    if (live.phase === "idle") phase("lost");
    complain(props.lost);
  }, EXPECTED_MS);
}

function stop(values) {
  unwanted = performance.now() - expected < EXPECTED_MS;
  if (BUSY.includes(live.phase)) breakOff("stopped");
  return values;
}

// The same, telling the server at `place` what was heard.
function halt(values, place) {
  stop();
  values[place] = cut;
  return values;
}

function breakOff(name, replaced = false) {
  noteCut();
  const back = takeBack(replaced);
  if (back) return phase(back === "idle" ? name : back);
  freeze(false);
  player.reset();
  discard = true;
  live.buffered = 0;
  live.ended = true;
  phase(name);
}

// Nobody waits for an answer to the question any more; says what the page showed before it.
function takeBack(replaced = false) {
  const before = asked?.before;
  giveBack(asked?.question, replaced);
  asked = null;
  return before;
}

function noteCut() {
  if (asked) cut = `${asked.run}:0`;
  else if (BUSY.includes(live.phase) && !live.again) cut = `${live.run}:${Math.ceil(Math.max(live.furthest, heard()))}`;
}

// There is no reply to this question: what was shown stays as it is. Gradio says some of the reasons itself.
function refused(sentence) {
  if (!asked) return;
  close(asked.run);
  phase(takeBack());
  live.refused = true;
  if (sentence) complain(sentence);
  announce();
}
new PerformanceObserver((list) => {
  if (list.getEntries().some((entry) => entry.responseStatus >= 400 && entry.name.includes("/queue/join"))) refused("");
}).observe({ type: "resource" });

// What is to come of the reply, as far as it is waited for: sound that has come is heard first.
function waits() {
  if (asked) return "first";
  const sounding = live.buffered > 0 && (clock?.running || player.silent);
  if (!BUSY.includes(live.phase) || live.ended || sounding) return null;
  return "more";
}

// The server is gone, or knows nothing of this reply any more.
function cutOff() {
  breakOff("lost");
  [...open.keys()].forEach(close);
  complain(props.lost);
}
