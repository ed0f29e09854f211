// A sample of the visitor's voice. Recording is window.recorder's, and a voice is made of it by the server.

import { complain } from "./common.js";

const SAMPLE_S = 5;

export function mount(element) {
  const $ = (selector) => element.querySelector(selector);
  const consent = document.querySelector("#consent input");
  let taking = false;

  function take(utterance) {
    taking = false;
    $(".vs-state").textContent = "Making the voice";
    window.liveAudio.door.send({ type: "voice.create", consent: consent.checked, utterance });
  }

  // From now on it is one of the voices, and the chosen one.
  function choose(voice) {
    const cards = document.querySelectorAll("#voice label");
    const own = [...cards].find((card) => card.dataset.own) ?? cards[0].cloneNode(true);
    own.dataset.own = true;
    own.querySelector(".voice-hear")?.remove();
    own.querySelector("span").translate = true;
    own.querySelector("span").textContent = "Your voice";
    cards[0].parentElement.append(own);
    own.querySelector("input").removeAttribute("aria-label");
    Object.assign(own.querySelector("input"), { value: voice, checked: true });
  }

  consent.addEventListener("change", () => {
    for (const button of [$(".vs-record"), $(".vs-file")]) button.disabled = !consent.checked;
    $(".vs-record").disabled ||= !window.recorder.possible;
  });
  $(".vs-record").addEventListener("click", () => {
    if (taking) return window.recorder.send();
    window.recorder.sample(take); // ends what was being recorded, which is no news of the sample
    taking = true;
  });
  $(".vs-file").addEventListener("click", () => $(".vs-input").click());
  $(".vs-input").addEventListener("change", ({ target }) => {
    window.recorder.sampleFile(target.files[0], take);
    taking = true;
    target.value = "";
  });
  document.addEventListener("recorder", ({ detail }) => {
    if (!taking) return;
    const { state, seconds, sentence } = detail;
    if (state === "recording" && seconds >= SAMPLE_S) window.recorder.send();
    if (state === "off") taking = false;
    $(".vs-record").textContent = state === "recording" ? "Stop" : "Record 5 seconds";
    $(".vs-state").textContent = state === "recording" ? `Recording ${seconds.toFixed(1)} s` : sentence;
  });
  document.addEventListener("voice.created", ({ detail: { voice, message } }) => {
    $(".vs-state").textContent = voice ? message : "";
    if (voice) choose(voice);
    else complain(message);
  });
}
