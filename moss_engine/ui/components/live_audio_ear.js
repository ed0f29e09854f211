// What the sound card says: where the ear is in the reply, and moving it elsewhere.

let skipped = { samples: 0, underruns: 0, starved: 0 }; // before the place from which the player was last started

let pace = 1; // of what sounds now: a reply that is over may be heard faster or slower

function hear(report) {
  if (report.first !== undefined) live.firstMs ??= player.toPageMs(report.first);
  else if (report.onset !== undefined) live.onsetMs ??= player.toPageMs(report.onset);
  else {
    const { state, played, buffered, underruns, starved, target } = report;
    Object.assign(live, {
      played: skipped.samples + pace * played, buffered: pace * buffered, underruns: skipped.underruns + underruns,
      starved: skipped.starved + starved, target: (1000 * target) / rate,
    });
    live.latencyMs = player.outputLatencyMs;
    if (state === "done" && live.ended && live.phase === "speaking") phase("done");
    clock = { played: live.played, at: performance.now(), running: state === "play" && !player.silent };
  }
  live.heardAfterMs = live.firstMs === null ? null : live.firstMs + player.outputLatencyMs - live.clickMs;
  announce();
}

// Samples before the one that is at the ear now.
function heard() {
  if (!clock || live.total === 0 || live.played === 0) return 0;
  const since = clock.running ? performance.now() - clock.at : 0;
  const lag = live.phase === "done" ? 0 : live.latencyMs;
  return Math.max(0, Math.min(live.total, clock.played + ((since - lag) * rate * pace) / 1000));
}

function freeze(running) {
  clock = { played: heard() + (live.latencyMs * rate * pace) / 1000, at: performance.now(), running };
}

// Whether there is sound to move in.
const seekable = () => live.total > 0 && !asked && ["speaking", "done", "stopped", "lost", "failed"].includes(live.phase);

// Go on hearing from a sample on: of a reply that is still being made, too.
function playFrom(sample) {
  const start = Math.max(0, Math.min(live.total, Math.round(sample)));
  live.furthest = Math.max(live.furthest, heard());
  live.again ||= live.phase !== "speaking";
  player.unlock();
  player.reset();
  skipped = { samples: start, underruns: live.underruns, starved: live.starved };
  live.played = start;
  clock = start ? { played: start, at: performance.now(), running: false } : null;
  pace = live.ended ? speed : 1;
  if (pace === 1) pushFrom(start);
  else pushStretched(start);
  phase("speaking");
}

function pushFrom(start) {
  let at = 0;
  for (const chunk of pcm) {
    if (at + chunk.length > start) player.push(chunk.slice(Math.max(0, start - at)));
    at += chunk.length;
  }
  if (live.ended) player.end();
}
