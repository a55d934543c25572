"use strict";
// Asks for the page again every few seconds while it is visible. Everything works without it, too.

const live = document.getElementById("live");
const every = Math.max(1, Number(live.dataset.every) || 2) * 1000;
let timer = 0;
let last = "";

function say(name, text) {
  const fresh = document.getElementById("fresh");
  fresh.className = name;
  if (text) fresh.querySelector(".text").textContent = text;
}

async function ask() {
  try {
    const answer = await fetch(location.href, { cache: "no-store" });
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    const text = await answer.text();
    if (text !== last) {
      last = text;
      const part = new DOMParser().parseFromString(text, "text/html").getElementById("live");
      if (!part) throw new Error("no page");
      if (live.contains(document.activeElement)) part.querySelector(`[href="${document.activeElement.getAttribute("href")}"]`)?.setAttribute("data-focus", "");
      live.replaceChildren(...part.childNodes);
      live.querySelector("[data-focus]")?.focus();
    }
    say("live", "");
  } catch {
    last = "";
    say("lost", "no answer; trying again");
  }
}

function schedule() {
  clearTimeout(timer);
  if (!document.hidden) timer = setTimeout(async () => { await ask(); schedule(); }, every);
}

document.addEventListener("visibilitychange", async () => {
  if (!document.hidden) await ask();
  schedule();
});

say("live", "");
schedule();
