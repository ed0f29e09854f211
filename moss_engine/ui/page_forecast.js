// While something is typed: when its sound would come, whether without a gap, and how long it would be. The server judges
// by the replies before and by who speaks now; what the browser adds is the player's own.

const PAUSE_MS = 350; // without a key, before it is asked for
const FRESH_MS = 4000; // and so often again, as others come and go
let pausing = 0;

const forecastPlace = () => document.querySelector(".forecast");
const wanted = () => box().value.trim() && document.body.dataset.output === "speech" && !document.body.classList.contains("busy");

function foresee() {
  if (!wanted()) forgetForecast();
  else if (window.liveAudio?.ready) window.liveAudio.foresee();
}

function forgetForecast() {
  clearTimeout(pausing);
  forecastPlace().hidden = true;
}

window.foreseen = (told) => {
  const place = forecastPlace();
  place.hidden = !told || !wanted();
  if (place.hidden) return;
  const { first_s: firstS, gaps, length_s: lengthS, others } = JSON.parse(told);
  const soon = firstS + window.liveAudio.ownMs / 1000;
  const length = lengthS === null ? "" : `, about ${lengthS.toFixed(lengthS < 10 ? 1 : 0)} s long`;
  const [sound, crowd] = place.children;
  sound.textContent = `Sound in about ${soon.toFixed(soon < 10 ? 1 : 0)} s, ${gaps ? "with gaps" : "no gaps"}${length}`;
  crowd.textContent = others ? `${others} ${others > 1 ? "others speak" : "other speaks"} now` : "";
};

document.addEventListener("input", ({ target }) => {
  if (!target.closest?.("#text")) return;
  clearTimeout(pausing);
  if (wanted()) pausing = setTimeout(foresee, PAUSE_MS);
  else forgetForecast();
});
document.addEventListener("asked", forgetForecast);
document.addEventListener("modechange", () => box() && foresee());
setInterval(() => document.hasFocus() && !forecastPlace().hidden && foresee(), FRESH_MS);
