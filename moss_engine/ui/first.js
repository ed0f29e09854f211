// Before the page's modules are there: the shade of this visitor, and a box whose questions are kept.
(() => {
  const { spoken, talks } = JSON.parse(document.getElementById("told").textContent);
  const kept = (name) => {
    try {
      return localStorage.getItem(name);
    } catch {
      return null; // everything is as on a first visit
    }
  };
  const mode = kept("moss-mode");
  const speaks = mode === null ? talks && window.isSecureContext && navigator.mediaDevices : spoken.includes(mode);
  Object.assign(document.body.dataset, { input: speaks ? "speech" : "text", view: "listen" });
  const dark = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  document.body.classList.toggle("dark", (kept("moss-shade") ?? dark) === "dark");

  if (window.parent !== window) { // a Space, whose frame is as high as the page
    const script = document.createElement("script");
    script.src = "static/js/iframeResizer.contentWindow.min.js";
    document.head.append(script);
  }

  const asked = [];
  window.first = { asked };
  const box = document.querySelector("#text textarea");
  function ask(event) {
    if (window.liveAudio || !box.value.trim()) return;
    event.preventDefault();
    asked.push({ question: box.value, ms: event.timeStamp });
    document.querySelector(".next-asked").hidden = false;
    document.querySelector(".next-asked span").textContent = box.value;
    box.value = "";
  }
  box.addEventListener("keydown", (event) => event.key === "Enter" && !event.shiftKey && !event.isComposing && ask(event));
  document.getElementById("send").addEventListener("click", ask);
})();
