// A reply whose last message has not come.

const LAST_WORD_MS = 1500; // the longest that it is waited for

class Open {
  constructor(run) {
    this.run = run;
    this.going = run !== null;
    this.end = new Promise((resolve) => (this.resolve = resolve));
  }

  close() {
    this.going = false;
    this.resolve();
  }

  giveUp() {
    setTimeout(() => this.close(), LAST_WORD_MS);
    return this.end;
  }
}
