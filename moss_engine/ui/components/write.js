// Writes a text where it is not the one that was written there before. What stands there may be its Chinese.

const written = new WeakMap(); // of every element

function write(place, text) {
  if (written.get(place) === text) return;
  written.set(place, text);
  place.textContent = text;
}
