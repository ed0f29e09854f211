// The conversation of this tab in the browser's own storage, with its sound: it outlives a reload and a lost server. Kept
// for a day, and deleted by "Clear all".

const KEPT_MS = 24 * 3600_000;
const MOST_SOUND_BYTES = 64 * 2 ** 20; // of one tab; the oldest go first
const TAB = "moss-tab";

// The secret name of this tab's conversation. While the tab is open no storage holds it, so that a duplicate of the tab
// does not take it, too.
function claimTab() {
  const kept = recall(TAB, "sessionStorage");
  note(TAB, null, "sessionStorage");
  if (kept) return kept;
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

const done = (request) => new Promise((resolve, reject) => {
  request.onsuccess = () => resolve(request.result);
  request.onerror = () => reject(request.error);
});

class Store {
  constructor() {
    this.tab = claimTab();
    this.written = new Map(); // id -> the entry as JSON, as it is kept
    this.bytes = new Map(); // id -> of its sound, the oldest first
    this.opened = this.open();
    window.addEventListener("pagehide", () => note(TAB, this.tab, "sessionStorage"));
    window.addEventListener("pageshow", () => note(TAB, null, "sessionStorage"));
  }

  async open() {
    const request = indexedDB.open("moss-speech", 1);
    request.onupgradeneeded = () => request.result.createObjectStore("turns", { keyPath: ["tab", "id"] });
    this.database = await done(request);
  }

  turns(mode) {
    return this.database.transaction("turns", mode).objectStore("turns");
  }

  // Everything of this tab, the oldest first: [{id, at, entry, sound}]. What other tabs left long ago goes.
  async read() {
    await this.opened;
    const all = await done(this.turns("readonly").getAll());
    const [now, mine] = [Date.now(), all.filter(({ tab }) => tab === this.tab).sort((a, b) => a.at - b.at)];
    const old = all.filter(({ tab, at }) => tab !== this.tab && now - at > KEPT_MS);
    for (const { tab, id } of old) this.turns("readwrite").delete([tab, id]);
    for (const { id, entry, sound } of mine) {
      this.written.set(id, JSON.stringify(entry));
      this.bytes.set(id, sound?.byteLength ?? 0);
    }
    return mine;
  }

  // Keep an entry; `fetchSound` brings its WAV as an ArrayBuffer. Resolves to the record, or null where it is kept already.
  async keep(entry, fetchSound) {
    const text = JSON.stringify(entry);
    if (this.written.get(entry.id) === text) return null;
    this.written.set(entry.id, text);
    await this.opened;
    const before = await done(this.turns("readonly").get([this.tab, entry.id]));
    const same = before?.entry.clip?.file.path === entry.clip?.file.path;
    const sound = !entry.clip ? null : same && before?.sound ? before.sound : await fetchSound();
    if (this.written.get(entry.id) !== text) return null; // cleared, or newer by now
    const record = { tab: this.tab, id: entry.id, at: before?.at ?? this.stamp(), entry, sound };
    await done(this.turns("readwrite").put(record));
    this.bytes.set(entry.id, sound?.byteLength ?? 0);
    await this.spare();
    return record;
  }

  stamp() {
    this.last = Math.max((this.last ?? 0) + 1, Date.now());
    return this.last;
  }

  // No more sound than a tab may keep.
  async spare() {
    let bytes = [...this.bytes.values()].reduce((sum, size) => sum + size, 0);
    for (const [id, size] of this.bytes) {
      if (bytes <= MOST_SOUND_BYTES) return;
      const record = size && (await done(this.turns("readonly").get([this.tab, id])));
      if (record) await done(this.turns("readwrite").put({ ...record, sound: null }));
      this.bytes.set(id, 0);
      bytes -= size;
    }
  }

  async forget(ids) {
    for (const id of ids) {
      this.written.delete(id);
      this.bytes.delete(id);
    }
    await this.opened;
    for (const id of ids) this.turns("readwrite").delete([this.tab, id]);
  }

  clear() {
    return this.forget([...this.written.keys()]);
  }
}
