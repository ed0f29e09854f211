// What comes through the door.

const QUIET_MS = 4000; // while a reply is open, something comes four times a second
const WATCH_MS = 1000;
const GONE = "The connection to the server was lost. This page waits for it and then comes back by itself, with what you typed.";

let lasting = { run: null }; // of the reply so far: of figures, stages and counts what changed is told
const NOTHING_NEW = { text: [], ids: [], pieces: {}, head: null };
function inFull({ run, seq, stages, figures, pool, ...news }) {
  if (lasting.run !== run) lasting = { run, stages: {}, figures: {}, pool: {} };
  Object.assign(lasting.stages, stages);
  Object.assign(lasting.figures, figures);
  Object.assign(lasting.pool, pool);
  Object.assign(lasting, NOTHING_NEW, news);
  return { ...lasting, seq };
}

const TAKES = {
  "response.update": (event, sound) => take(inFull(event), sound),
  "conversation.updated": ({ entries, whole }) => document.dispatchEvent(new CustomEvent("conversation", { detail: { entries, whole } })),
  "replay.checked": ({ sentence }) => considered(sentence),
  "input_audio_buffer.heard": (event) => document.dispatchEvent(new CustomEvent("heard", { detail: event })),
  "input_audio_buffer.failed": (event) => document.dispatchEvent(new CustomEvent("heard", { detail: { ...event, failed: event.message } })),
  error: ({ message }) => {
    refused("");
    complain(message);
  },
};

let quietSince = performance.now();
let door = null;
let gone = false; // the page says so
function openDoor() {
  const address = new URL(`${root}/gradio_api/live`, location.href);
  address.protocol = address.protocol.replace("http", "ws");
  door = new Door(address, window.conversation.key(), {
    event(event, sound) {
      quietSince = performance.now();
      TAKES[event.type]?.(event, sound);
    },
    broken() {
      gone = true;
      complain(GONE);
    },
    back(renewed) {
      if (renewed) return location.reload(); // another program answers, whose page may be another one
      if (gone) complain("");
      gone = false;
    },
    refused: complain,
    lost() {
      cutOff();
      complain(gone ? GONE : props.lost);
    },
  });
  setInterval(() => {
    const now = performance.now();
    if (!waits() || !door.isOpen) quietSince = now;
    else if (now - quietSince > QUIET_MS) door.renew();
  }, WATCH_MS);
}
