// The panel for programs: snippets with this page's own address, copied by one click.
const programs = element.querySelector(".programs");
for (const code of programs?.querySelectorAll("code.way") ?? []) {
  code.textContent = code.textContent.replaceAll("@address@", location.origin);
}

// Without a secure context there is no clipboard to write to, only the one of what is marked.
async function copied(code) {
  if (navigator.clipboard) return navigator.clipboard.writeText(code.textContent).then(() => true, () => false);
  getSelection().selectAllChildren(code);
  return document.execCommand("copy");
}

programs?.addEventListener("click", async ({ target }) => {
  if (target === programs) programs.close();
  const copy = target.closest(".way-copy");
  if (!copy) return;
  copy.textContent = (await copied(copy.parentElement.nextElementSibling.firstChild)) ? "Copied" : "Mark it and copy by hand";
});
document.addEventListener("click", ({ target }) => target.closest?.(".programs-open") && programs.showModal());
