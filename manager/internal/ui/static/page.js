"use strict";
// Everything works without this file, but for parts of a page that stay fresh.

// Relative times.
const lasts = (s) => {
  const unit = (n, name) => Math.floor(n) + " " + name + (Math.floor(n) === 1 ? "" : "s");
  if (s < 60) return unit(s, "second");
  if (s < 3600) return unit(s / 60, "minute");
  if (s < 48 * 3600) return unit(s / 3600, "hour");
  return unit(s / 86400, "day");
};
const tellTimes = () => {
  for (const t of document.querySelectorAll("time[datetime] .ago")) {
    const s = (Date.now() - Date.parse(t.parentNode.dateTime)) / 1000;
    const text = Math.abs(s) < 1 ? "now" : s < 0 ? "in " + lasts(-s) : lasts(s) + " ago";
    if (t.textContent !== text) t.textContent = text;
  }
};
setInterval(tellTimes, 1000);

// Live parts, only while a person looks: a browser has few connections to one manager.
const root = document.body.dataset.root;
const retryAfter = 5000;
for (const part of document.querySelectorAll("[data-live]")) {
  let source = null;
  let retry = 0;
  const note = document.createElement("p"); // says that the part is not fresh, and why
  note.className = "trouble lost";
  note.setAttribute("role", "status");
  note.hidden = true;
  part.before(note);
  const stale = (why) => {
    part.classList.add("stale");
    if (!note.hidden) return;
    const reload = document.createElement("a");
    reload.href = location.href;
    reload.textContent = "Load the page again";
    note.replaceChildren("What you see is of " + new Date().toISOString().slice(11, 19) + " UTC: " + why + " ", reload);
    note.hidden = false;
  };
  const follow = () => {
    clearTimeout(retry);
    if (document.hidden) {
      if (source) source.close();
      source = null;
    } else if (!source) {
      source = new EventSource(root + "events/" + part.dataset.live);
      source.onmessage = (e) => {
        part.classList.remove("stale");
        note.hidden = true;
        // The manager's own templates wrote it, and escaped what is in it.
        if (!part.contains(document.activeElement)) part.innerHTML = e.data;
      };
      source.onerror = () => {
        stale("the manager does not answer, or your session has ended.");
        // A browser gives up after an answer that is no stream, such as a proxy's for a manager that starts again.
        if (source.readyState === EventSource.CLOSED) {
          source = null;
          retry = setTimeout(follow, retryAfter);
        }
      };
      source.addEventListener("trouble", () => stale("the store does not answer."));
    }
  };
  document.addEventListener("visibilitychange", follow);
  follow();
}

// "/" goes to the search field.
document.addEventListener("keydown", (e) => {
  if (e.key !== "/" || e.ctrlKey || e.metaKey || e.altKey || /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement.tagName)) return;
  const field = document.querySelector("[data-focus]");
  if (field) {
    e.preventDefault();
    field.focus();
  }
});

// A box that ticks all others of its form.
for (const all of document.querySelectorAll("input[data-all]")) {
  all.hidden = false;
  all.addEventListener("change", () => {
    for (const box of document.querySelectorAll(`input[name="${all.dataset.all}"]`)) box.checked = all.checked;
  });
}
