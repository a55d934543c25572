"use strict";
// Keeps a page fresh: asks for it again every few seconds, with its ETag, and changes only what differs. It asks nothing
// while the page is hidden. Everything works without it, too.

const live = document.getElementById("live");
const every = Math.max(1, Number(live.dataset.every) || 2) * 1000;
let etag = null;
let timer = 0;
let asking = false;
let failures = 0;
// Whether a form loads the next page, and how long this one waits for that, in ms, before it goes on.
let leaving = false;
let stopped = new AbortController();
const PATIENCE = 30000;

function state(name, text) {
  const fresh = document.getElementById("fresh");
  fresh.className = `fresh ${name}`;
  if (text) fresh.querySelector(".text").textContent = text;
}

// Makes `old` equal to `fresh`, in place, so that focus, selection, open details and typed text stay.
function morph(old, fresh) {
  if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName || (old.id || "") !== (fresh.id || "")) {
    old.replaceWith(document.importNode(fresh, true));
    return;
  }
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.nodeValue !== fresh.nodeValue) old.nodeValue = fresh.nodeValue;
    return;
  }
  if ("keep" in old.dataset) return;
  for (const { name } of [...old.attributes])
    if (!fresh.hasAttribute(name) && !(name === "open" && old.nodeName === "DETAILS") && !("copy" in old.dataset)) old.removeAttribute(name);
  for (const { name, value } of [...fresh.attributes])
    if (old.getAttribute(name) !== value && !(name === "value" && old === document.activeElement)) old.setAttribute(name, value);
  children(old, fresh);
}

function children(old, fresh) {
  const known = new Map();
  for (const child of old.children) if (child.id) known.set(child.id, child);
  let place = old.firstChild;
  for (const wanted of [...fresh.childNodes]) {
    const same = wanted.id && known.get(wanted.id);
    if (same) {
      if (same === place) place = place.nextSibling;
      else old.insertBefore(same, place);
      morph(same, wanted);
    } else if (place && !place.id && place.nodeName === wanted.nodeName && !wanted.id) {
      const next = place.nextSibling;
      morph(place, wanted);
      place = next;
    } else old.insertBefore(document.importNode(wanted, true), place);
  }
  while (place) {
    const next = place.nextSibling;
    place.remove();
    place = next;
  }
}

async function ask(url = location.href) {
  if (asking || leaving) return;
  asking = true;
  try {
    const headers = { "X-Requested-With": "refresh" };
    if (etag && url === location.href) headers["If-None-Match"] = etag;
    const answer = await fetch(url, { headers, credentials: "same-origin", cache: "no-store", signal: stopped.signal });
    if (answer.status !== 304) {
      if (!answer.headers.get("Content-Type")?.startsWith("text/html")) throw new Error(`status ${answer.status}`);
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      const part = fresh.getElementById("live");
      if (!part) throw new Error("no page");
      keepNote(part);
      morph(live, part);
      etag = answer.headers.get("ETag");
      enliven();
    }
    failures = 0;
    const asOf = answer.headers.get("X-As-Of");
    state("live", asOf && `as of ${asOf}`);
  } catch (error) {
    if (error.name === "AbortError") return;
    failures += 1;
    state("lost", "no answer; trying again");
  } finally {
    asking = false;
  }
}

// What an action has said is only in the page that it loaded, and stays until one leaves that.
function keepNote(part) {
  const note = document.getElementById("note");
  if (note && !part.querySelector("#note")) part.querySelector("main").before(note.cloneNode(true));
}

function schedule() {
  clearTimeout(timer);
  if (document.hidden) return;
  const delay = leaving ? PATIENCE : Math.min(60000, every * 2 ** Math.min(failures, 4));
  timer = setTimeout(async () => { leaving = false; await ask(); schedule(); }, delay);
}

// Until the next page comes, this one might ask for what its form has just deleted.
document.addEventListener("submit", () => {
  leaving = true;
  stopped.abort();
  stopped = new AbortController();
  schedule();
});

window.addEventListener("pageshow", ({ persisted }) => {
  if (!persisted) return;
  leaving = false;
  schedule();
});

// -- commands are copied by a click; the counter runs between two answers --

function enliven() {
  for (const code of document.querySelectorAll("[data-copy]:not([role])")) {
    code.setAttribute("role", "button");
    code.tabIndex = 0;
    code.title = "Copy";
  }
  const output = document.querySelector("[data-counter]");
  if (output) {
    output.base = Number(output.dataset.counter);
    output.since = performance.now();
    if (!output.running) { output.running = true; requestAnimationFrame(count); }
  }
}

function count(now) {
  const output = document.querySelector("[data-counter]");
  if (!output) return;
  const passed = Math.min(15, (now - output.since) / 1000);
  const text = Math.round(output.base + passed * Number(output.dataset.rate)).toLocaleString("en-US");
  if (output.textContent !== text && !matchMedia("(prefers-reduced-motion: reduce)").matches) output.textContent = text;
  requestAnimationFrame(count);
}

function copy(code) {
  navigator.clipboard?.writeText(code.textContent.replace(/^\$ /, "")).then(() => {
    code.classList.add("copied");
    setTimeout(() => code.classList.remove("copied"), 900);
  }, () => {});
}

document.addEventListener("click", (event) => {
  const code = event.target.closest("[data-copy]");
  if (code) copy(code);
  for (const open of document.querySelectorAll("details.confirm[open]")) if (!open.contains(event.target)) open.open = false;
});

document.addEventListener("keydown", (event) => {
  const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.nodeName);
  if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.preventDefault();
    document.getElementById("find").select();
  } else if (event.key === "Escape") {
    for (const open of document.querySelectorAll("details.confirm[open]")) { open.open = false; open.querySelector("summary").focus(); }
  } else if ((event.key === "Enter" || event.key === " ") && event.target.matches("[data-copy]")) {
    event.preventDefault();
    copy(event.target);
  }
});

// -- searching as one types, on the list of topics --

const find = document.getElementById("find");
let typed = 0;
find.addEventListener("input", () => {
  if (!document.querySelector('.pages a[href="' + find.form.getAttribute("action") + '"][aria-current]')) return;
  clearTimeout(typed);
  typed = setTimeout(async () => {
    const url = new URL(location.href);
    if (find.value) url.searchParams.set("q", find.value); else url.searchParams.delete("q");
    url.searchParams.delete("page");
    history.replaceState(null, "", url);
    etag = null;
    await ask(url.href);
  }, 150);
});

document.addEventListener("visibilitychange", async () => {
  if (!document.hidden) await ask();
  schedule();
});

enliven();
state("live");
schedule();
