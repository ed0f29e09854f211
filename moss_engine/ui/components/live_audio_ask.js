// Asking and stopping: what the page calls, and what becomes of a question before its reply begins.

let cut = ""; // the newest reply and how much of it was heard, where it was not heard whole
const EXPECTED_MS = 1000; // the longest that a press may take to become a question
const typed = []; // questions that were taken out of the box and are not on their way yet: {question, ms, own}
let since = null; // from when the next question counts, where that is no press: {ms, words}

// A click or key press that asks what was typed: it does so in a moment, when the page knows its settings, of
// which some may be its `own`.
function expect(question, ms, own = {}) {
  player.unlock();
  const pending = { question, ms, own };
  typed.push(pending);
  setTimeout(() => {
    if (!typed.includes(pending)) return;
    typed.splice(typed.indexOf(pending), 1);
    giveBack(question);
    complain(props.lost);
  }, EXPECTED_MS);
}

// The next question counts from a press, or from the last word of somebody who spoke.
function count(ms, words) {
  since = { ms, words };
}

function submitTyped(values, names) {
  const { question, ms, own } = typed.shift() ?? {};
  if (question === undefined) return;
  count(ms, false);
  const meant = { ...own, text: question };
  submit(names.map((name, i) => meant[name] ?? values[i]), names, question);
}

// Ask with the `values` of the controls of these `names`. A reply that still speaks falls silent, but all that is shown
// stays until the question is accepted.
function submit(values, names, question) {
  ask({ type: "response.create", values: Object.fromEntries(names.map((name, i) => [name, values[i]])) }, { question });
}

function ask(event, { question, recorded = false } = {}) {
  noteCut();
  player.unlock();
  const way = soundWay(live);
  const run = randomName().slice(0, 8);
  const before = BUSY.includes(live.phase) ? "stopped" : live.phase;
  const heardSoFar = cut;
  door.send({ ...event, run, heard: heardSoFar, sound: way });
  if (BUSY.includes(live.phase)) breakOff("stopped", true);
  const { ms, words } = since ?? { ms: performance.now(), words: false };
  since = null;
  asked = { run, clickMs: ms, byWords: words, seq: -1, before, recorded, question };
  player.wait(way === "opus" ? SLOW_PREBUFFER_MS : null);
  phase("sent");
  document.dispatchEvent(new Event("asked"));
}

// A question that was taken out of the box is not asked: it goes back, or beside the box where another one replaced it.
function giveBack(question, replaced = false) {
  if (question !== undefined) document.dispatchEvent(new CustomEvent("unasked", { detail: { question, replaced } }));
}

// Silence at once, and the server is told what was heard.
function stop() {
  for (const { question } of typed.splice(0)) giveBack(question);
  if (!BUSY.includes(live.phase)) return;
  breakOff("stopped");
  door.send({ type: "response.cancel", heard: cut });
}

function clear() {
  if (BUSY.includes(live.phase)) breakOff("stopped");
  door.send({ type: "conversation.clear", heard: cut });
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

// There is no reply to this question: what was shown stays as it is.
function refused(sentence) {
  if (!asked) return;
  phase(takeBack());
  live.refused = true;
  if (sentence) complain(sentence);
  announce();
}

// Whether more is to come of a reply that is waited for: sound that has come is heard first.
function waits() {
  if (asked) return true;
  const sounding = live.buffered > 0 && (clock?.running || player.silent);
  return BUSY.includes(live.phase) && !live.ended && !sounding;
}

// The server knows nothing of this reply any more.
function cutOff() {
  if (asked || BUSY.includes(live.phase)) breakOff("lost");
}
