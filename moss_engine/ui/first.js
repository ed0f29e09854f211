// Before the page's modules are there: shade and view of this visitor, and a box and examples whose questions are kept.
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
  const view = [location.hash.slice(1), kept("moss-view"), "listen"].find((name) => ["listen", "engine"].includes(name));
  Object.assign(document.body.dataset, { input: speaks ? "speech" : "text", view });
  function shade() {
    const dark = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
    document.body.classList.toggle("dark", (kept("moss-shade") ?? dark) === "dark");
  }
  shade();

  // Gradio's sign that it loads counts its seconds at every frame, and on when it is gone. Its module finds another clock
  // here, of one count a second once the page is there: or a page that rests would be drawn anew all the time.
  const everyFrame = window.requestAnimationFrame;
  let rarely = false;
  const counted = (count) => (rarely ? setTimeout(count, 1000) : everyFrame(count));
  Object.defineProperty(window, "requestAnimationFrame", {
    configurable: true,
    get: () => (new Error().stack.includes("/statustracker-") ? counted : everyFrame),
  });

  const asked = [];
  window.first = {
    asked,
    // Gradio's component is there, and takes the page in, with whatever goes on in it.
    arrived(place) {
      const [page, active] = [document.getElementById("page"), document.activeElement];
      if (place.moveBefore) place.moveBefore(page, null);
      else {
        place.append(page);
        if (page.contains(active)) active.focus();
      }
      shade();
      rarely = true;
      Object.defineProperty(window, "requestAnimationFrame", { configurable: true, writable: true, value: everyFrame });
    },
  };

  const box = document.querySelector("#text textarea");
  function ask(event) {
    const example = event.target.closest(".chip, .la-example");
    const question = example ? (example.dataset.en ?? example.textContent) : box.value;
    if (window.liveAudio || !question.trim()) return;
    event.preventDefault();
    asked.push({ question, ms: event.timeStamp });
    document.querySelector(".next-asked").hidden = false;
    document.querySelector(".next-asked span").textContent = question;
    if (!example) box.value = "";
  }
  box.addEventListener("keydown", (event) => event.key === "Enter" && !event.shiftKey && !event.isComposing && ask(event));
  document.addEventListener("click", (event) => event.target.closest(".chip, .la-example, #send") && ask(event));
})();
