// While the visitor is listened to, the scope shows how loud they are: the newest sound at the right edge.

const OWN_BARS = 96;
const OWN_STEP = 1.6; // a voice at arm's length fills the height
const ownCanvas = $(".la-own");
let levels = [];

function drawOwn() {
  const { clientWidth: width, clientHeight: height } = ownCanvas;
  const ratio = devicePixelRatio || 1;
  Object.assign(ownCanvas, { width: width * ratio, height: height * ratio });
  const paint = ownCanvas.getContext("2d");
  paint.scale(ratio, ratio);
  paint.fillStyle = getComputedStyle(ownCanvas).color;
  const step = width / OWN_BARS;
  levels.forEach((level, i) => {
    const tall = Math.max(2, Math.min(1, level * OWN_STEP) * height);
    paint.fillRect((OWN_BARS - levels.length + i) * step, (height - tall) / 2, Math.max(1, step - 2), tall);
  });
}

document.addEventListener("ownlevel", ({ detail }) => {
  levels = [...levels, detail].slice(-OWN_BARS);
  drawOwn();
});
document.addEventListener("recorder", ({ detail }) => {
  const heardNow = ["recording", "listening", "hearing"].includes(detail.state) && !BUSY.includes(live.phase);
  if (heardNow && !element.classList.contains("la-hears")) levels = [];
  element.classList.toggle("la-hears", heardNow);
});
