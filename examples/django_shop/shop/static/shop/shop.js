"use strict";

// Shows the orders and their states: asks once a second, and redraws the list if something has changed.
const list = document.getElementById("orders");

function row(order) {
  const item = document.createElement("li");
  item.dataset.number = order.number;
  const text = document.createElement("span");
  text.className = "text";
  const number = document.createElement("span");
  number.className = "number";
  number.textContent = `#${order.number}`;
  const who = document.createElement("span");
  who.className = "who";
  who.textContent = ` for ${order.customer}`;
  const what = document.createElement("span");
  what.className = "what";
  what.append(number, order.what);
  text.append(what, who);
  const state = document.createElement("span");
  state.className = `state ${order.state}`;
  state.textContent = order.label;
  item.append(text, state);
  return item;
}

async function refresh() {
  let answer;
  try {
    answer = await fetch(list.dataset.url, { headers: { Accept: "application/json" } });
  } catch {
    answer = { ok: false };
  }
  document.getElementById("away").hidden = answer.ok;
  if (answer.ok) {
    const rows = (await answer.json()).orders.map(row);
    const changed = rows.length !== list.children.length || rows.some((each, i) => !each.isEqualNode(list.children[i]));
    if (changed) list.replaceChildren(...rows);
    document.getElementById("none").hidden = rows.length > 0;
  }
  setTimeout(refresh, 1000);
}

refresh();
