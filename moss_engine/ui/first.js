// Before Gradio's scripts are there: the shade and the language of this visitor, and a box whose questions are kept.
(() => {
  const frame = document.getElementById("first");
  const box = frame.querySelector("textarea");
  const { chinese, spoken, talks } = JSON.parse(frame.dataset.told);
  const kept = (name) => {
    try {
      return localStorage.getItem(name);
    } catch {
      return null; // everything is as on a first visit
    }
  };
  const dark = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  document.body.classList.toggle("dark", (kept("moss-shade") ?? dark) === "dark");

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
  let table = null;
  window.first = {
    composing: false,
    engine: new Promise((resolve) => addEventListener("engine", resolve, { once: true })), // somebody looks at it
    chinese: () => (table ??= fetch(chinese).then((answer) => answer.json())),
    // The page is there: it takes what was typed and asked, and where one was in the box.
    leave() {
      const at = document.activeElement === box && box ? [box.selectionStart, box.selectionEnd] : null;
      frame.remove();
      document.getElementById("first-css").remove();
      rarely = true;
      Object.defineProperty(window, "requestAnimationFrame", { configurable: true, writable: true, value: everyFrame });
      return { asked, text: box?.value ?? "", at };
    },
  };

  const language = kept("moss-language") ?? navigator.languages.find((name) => /^(en|zh)\b/i.test(name)) ?? "en";
  if (/^zh/i.test(language)) window.first.chinese().then((words) => {
    for (const element of frame.querySelectorAll("p, button, span, textarea")) {
      const name = element === box ? "placeholder" : "textContent";
      if (element.children.length === 0 && words[element[name]]) element[name] = words[element[name]];
    }
  });

  const mode = kept("moss-mode");
  const speaks = mode === null ? talks && window.isSecureContext && navigator.mediaDevices : spoken.includes(mode);
  frame.classList.toggle("first-spoken", Boolean(speaks));
  if (!box) return;
  const ask = (event) => {
    event.preventDefault();
    if (!box.value.trim()) return box.focus();
    asked.push({ question: box.value, ms: event.timeStamp });
    frame.querySelector(".first-asked").textContent = box.value;
    box.value = "";
  };
  box.addEventListener("keydown", (event) => event.key === "Enter" && !event.shiftKey && !event.isComposing && ask(event));
  frame.querySelector("section button").addEventListener("click", ask);
  box.addEventListener("compositionstart", () => (window.first.composing = true));
  box.addEventListener("compositionend", () => (window.first.composing = false));
})();
