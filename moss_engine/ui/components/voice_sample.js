// A sample of the visitor's voice. Recording is window.recorder's.

const SAMPLE_S = 5;

export function mount(element, props, trigger, watch) {
  const $ = (selector) => element.querySelector(selector);
  const buttons = [$(".vs-record"), $(".vs-file")];
  const MAKING = "Making the voice";
  let taking = false;
  let making = false;

  function take(utterance) {
    taking = false;
    making = true;
    $(".vs-state").textContent = MAKING;
    props.value = utterance;
    trigger("sampled");
  }

  function say(sentence) {
    making = false;
    $(".vs-state").textContent = sentence;
  }

  function agreed() {
    return Boolean(document.querySelector("#consent input")?.checked);
  }

  document.addEventListener("change", ({ target }) => {
    if (!target.closest?.("#consent")) return;
    for (const button of buttons) button.disabled = !agreed();
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
  // What the server says of the voice; where none was made, the page shows the reason.
  watch("value", () => making && / /.test(props.value) && say(props.value));
  document.addEventListener("voicemade", () => making && say(""));
}
