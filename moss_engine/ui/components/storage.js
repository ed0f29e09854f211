// What the browser keeps for this page: "localStorage" for good, "sessionStorage" as long as the tab is open. Where it keeps
// nothing, as it was told to, everything is as on a first visit.

function recall(name, where = "localStorage") {
  try {
    return window[where].getItem(name);
  } catch {
    return null;
  }
}

// null forgets it.
function note(name, value, where = "localStorage") {
  try {
    if (value === null) window[where].removeItem(name);
    else window[where].setItem(name, value);
  } catch {
    // nobody is told of what nobody asked for
  }
}
