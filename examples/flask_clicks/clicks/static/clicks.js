"use strict";

const form = document.getElementById("form");
const list = document.getElementById("clicks");
const state = document.getElementById("state");
const problem = document.getElementById("problem");
// A new stream repeats the last clicks, and NSQ may deliver a message twice.
const seen = new Set();

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const data = new URLSearchParams(new FormData(form));
  data.set("colour", event.submitter.value);
  const answer = await fetch(form.action, { method: "POST", body: data }).catch(() => null);
  problem.hidden = answer !== null && answer.ok;
  problem.textContent = problem.hidden ? "" : "The click was not published. Is nsqd running?";
});

const stream = new EventSource("/stream");
stream.onopen = () => { state.textContent = "live"; state.className = "live"; };
stream.onerror = () => { state.textContent = "reconnecting"; state.className = ""; };
stream.onmessage = (event) => {
  const click = JSON.parse(event.data);
  if (seen.has(click.id)) return;
  seen.add(click.id);
  const item = document.createElement("li");
  item.className = click.colour;
  const took = Math.max(0, Date.now() - click.at * 1000);
  const parts = { strong: click.name, span: click.colour, time: new Date(click.at * 1000).toLocaleTimeString(),
                  small: `${took < 5000 ? took.toFixed(0) + " ms, " : ""}worker ${click.worker}` };
  for (const [tag, text] of Object.entries(parts)) {
    item.appendChild(document.createElement(tag)).textContent = text;
  }
  list.prepend(item);
  while (list.children.length > 20) list.lastChild.remove();
  const count = document.querySelector(`[data-count="${click.colour}"]`);
  count.textContent = Number(count.textContent) + 1;
};
