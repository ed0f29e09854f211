"""Every text of the page that somebody can see or hear, but for what visitors and models wrote."""

TEXTS = """() => {
  const own = (e) => !e.closest('[translate="no"], script, style, template');
  const found = new Set();
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const node = walk.currentNode;
    if (own(node.parentElement) && node.parentElement.checkVisibility()) found.add(node.data);
  }
  for (const e of document.body.querySelectorAll("*")) {
    if (!own(e) || !e.checkVisibility()) continue;
    for (const name of ["aria-label", "aria-valuetext", "title", "placeholder"]) if (e.hasAttribute(name)) found.add(e.getAttribute(name));
  }
  return [...found].map((text) => text.trim().replace(/\\s+/g, " ")).filter((text) => /\\p{L}{2}/u.test(text));
}"""
