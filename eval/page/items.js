/* The list of answers with its filters, and the dialog that shows one. The address keeps the filter and the answer. */

const PAGE_ROWS = 50;
const ANSWERS = DATA.items.flatMap((item) => item.answers.map((answer) => ({ item, answer })));
const BY_ID = new Map(DATA.items.map((item) => [item.id, item]));
const FILTERS = ["q", "system", "part", "fault", "against"];
const state = { rows: [], visible: PAGE_ROWS, open: null, opener: null };

function filterControl(name) {
  return document.getElementById(`filter-${name}`);
}

function option(value, ...words) {
  return element("option", { value }, ...words);
}

function fillFilters() {
  const used = (get) => new Set(ANSWERS.map(get));
  const systems = used(({ answer }) => answer.system);
  const parts = used(({ item }) => item.part);
  const faults = used(({ answer }) => answer.fault);
  for (const system of DATA.systems) {
    if (!systems.has(system)) continue;
    filterControl("system").append(option(system, shownText(system)));
    filterControl("against")?.append(option(system, shownText(system)));
  }
  for (const part of DATA.parts) if (parts.has(part)) filterControl("part").append(option(part, shownText(part)));
  for (const fault of DATA.faults)
    if (faults.has(fault.name)) filterControl("fault").append(option(fault.name, fault.name));
}

function searchText({ item, answer }) {
  answer.search ??= [item.id, item.query, answer.finding || "", answer.text || "", ...item.reference_text]
    .join("\n")
    .toLowerCase();
  return answer.search;
}

function isRight(answer) {
  return answer.fault === "right";
}

function matches(row, filter) {
  const { item, answer } = row;
  if (filter.system && answer.system !== filter.system) return false;
  if (filter.part && item.part !== filter.part) return false;
  if (
    filter.fault === "wrong" ? isRight(answer) || answer.fault === null : filter.fault && answer.fault !== filter.fault
  )
    return false;
  if (filter.against) {
    const other = item.answers.find((candidate) => candidate.system === filter.against);
    if (!other || other === answer || isRight(other) === isRight(answer)) return false;
  }
  return filter.q
    .toLowerCase()
    .split(/\s+/)
    .every((word) => searchText(row).includes(word));
}

function currentFilter() {
  return Object.fromEntries(FILTERS.map((name) => [name, filterControl(name)?.value.trim() || ""]));
}

function applyFilter() {
  const filter = currentFilter();
  state.rows = ANSWERS.filter((row) => matches(row, filter));
  state.visible = PAGE_ROWS;
  drawList();
  keepAddress();
}

function drawList() {
  const body = document.querySelector("#list tbody");
  const rows = state.rows.slice(0, state.visible);
  body.replaceChildren(...rows.map(listRow));
  if (!rows.length)
    body.append(element("tr", {}, element("td", { colspan: "6", class: "none" }, "No answer fits this filter.")));
  const wrong = state.rows.filter(({ answer }) => answer.fault !== null && !isRight(answer)).length;
  document.getElementById("count").textContent =
    `${count(state.rows.length)} of ${count(ANSWERS.length)} answers, ${count(wrong)} wrong`;
  const more = document.getElementById("more");
  const left = state.rows.length - rows.length;
  more.hidden = left <= 0;
  more.textContent = `Show ${count(Math.min(PAGE_ROWS, left))} more`;
}

function listRow(row, place) {
  const { item, answer } = row;
  const again = place > 0 && state.rows[place - 1].item === item;
  const query = Array.from(item.query);
  const words = query.length > 220 ? `${query.slice(0, 219).join("")}…` : item.query;
  const button = element(
    "button",
    { type: "button", class: again ? "open again" : "open", dir: "auto", tabindex: place ? "-1" : "0" },
    words ? shown(words) : "(empty query)",
  );
  return element(
    "tr",
    { role: "row", onclick: () => openAnswer(place, button) },
    element("td", { role: "cell", class: "query" }, button),
    element("td", { role: "cell" }, systemName(answer.system)),
    element("td", { role: "cell" }, shown(item.part)),
    element("td", { role: "cell" }, faultPill(answer.fault)),
    element("td", { role: "cell", class: "num" }, count(answer.completion_tokens)),
    element("td", { role: "cell", class: "num" }, short(answer.seconds)),
  );
}

/* Arrow keys move among the rows; Tab leaves the list. */
function moveInList(event) {
  const buttons = Array.from(document.querySelectorAll("#list button.open"));
  const place = buttons.indexOf(document.activeElement);
  const target = { ArrowDown: place + 1, ArrowUp: place - 1, Home: 0, End: buttons.length - 1 }[event.key];
  if (place < 0 || target === undefined || !buttons[target]) return;
  event.preventDefault();
  focusRow(buttons[target]);
}

function focusRow(button) {
  for (const other of document.querySelectorAll('#list button.open[tabindex="0"]')) other.tabIndex = -1;
  button.tabIndex = 0;
  button.focus();
}

function openAnswer(place, opener) {
  state.open = place;
  state.opener = opener ?? state.opener;
  const row = state.rows[place];
  showAnswer(row.item, row.answer);
}

function showAnswer(item, answer) {
  const dialog = document.getElementById("answer");
  const focused = document.activeElement?.dataset?.focus;
  const place = state.open;
  const step = (by, label, sign) =>
    element(
      "button",
      {
        type: "button",
        class: "button quiet",
        "data-focus": label,
        "aria-label": label,
        disabled: place === null || !state.rows[place + by],
        onclick: () => openAnswer(place + by),
      },
      sign,
    );
  const where = place === null ? "" : `${count(place + 1)} of ${count(state.rows.length)}`;
  dialog.replaceChildren(
    element(
      "div",
      { class: "dialog-bar" },
      element(
        "div",
        { class: "steps" },
        step(-1, "Previous answer", "←"),
        step(1, "Next answer", "→"),
        element("span", { class: "count" }, where),
      ),
      element(
        "button",
        { type: "button", class: "button quiet", "data-focus": "close", onclick: () => dialog.close() },
        "Close",
      ),
    ),
    element(
      "h2",
      { id: "answer-query", dir: "auto", tabindex: item.query_length > 400 ? "0" : null },
      shown(item.query || "(empty query)"),
      item.query_length > Array.from(item.query).length ? element("span", { class: "note" }, " … shortened") : null,
    ),
    systemTabs(item, answer),
    answerView(item, answer),
  );
  if (!dialog.open) dialog.showModal();
  dialog.scrollTop = 0;
  (
    dialog.querySelector(`[data-focus="${focused}"]:not([disabled])`) || dialog.querySelector('[data-focus="close"]')
  ).focus();
  dialog.dataset.item = item.id;
  dialog.dataset.system = answer.system;
  keepAddress();
}

function systemTabs(item, answer) {
  if (item.answers.length < 2) return element("p", { class: "tabs" }, systemName(answer.system));
  return element(
    "div",
    { class: "tabs", role: "group", "aria-label": "Answers of the systems" },
    item.answers.map((other, place) =>
      element(
        "button",
        {
          type: "button",
          class: "tab",
          "data-focus": `system ${place}`,
          "aria-pressed": String(other === answer),
          onclick: () => switchSystem(item, other),
        },
        systemName(other.system),
        element("span", { class: `dot fault-${FAULT_PLACE.get(other.fault) ?? 0}` }),
        element("span", { class: "sr" }, `: ${other.fault || "no reference"}`),
      ),
    ),
  );
}

function switchSystem(item, answer) {
  const place = state.rows.findIndex((row) => row.answer === answer);
  if (place >= 0) state.open = place;
  showAnswer(item, answer);
}

function keepAddress() {
  const parameters = new URLSearchParams();
  for (const [name, value] of Object.entries(currentFilter())) if (value) parameters.set(name, value);
  const dialog = document.getElementById("answer");
  if (dialog.open) {
    parameters.set("item", dialog.dataset.item);
    parameters.set("of", dialog.dataset.system);
  }
  const text = parameters.toString();
  try {
    history.replaceState(null, "", text ? `#${text}` : "#");
  } catch {
    /* a text that no address can hold (a lone surrogate): the address stays as it was */
  }
}

function readAddress() {
  const parameters = new URLSearchParams(location.hash.slice(1));
  for (const name of FILTERS) {
    const control = filterControl(name);
    if (control) control.value = parameters.get(name) || "";
    if (control && control.selectedIndex === -1) control.value = "";
  }
  const [id, system] = [parameters.get("item"), parameters.get("of")];
  applyFilter();
  const item = BY_ID.get(id);
  const answer = item?.answers.find((candidate) => candidate.system === system);
  if (!answer) return;
  const place = state.rows.findIndex((row) => row.answer === answer);
  state.open = place >= 0 ? place : null;
  showAnswer(item, answer);
}

function startItems() {
  const form = document.getElementById("filters");
  const dialog = document.getElementById("answer");
  fillFilters();
  form.addEventListener("input", applyFilter);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => setTimeout(applyFilter));
  document.getElementById("list").addEventListener("keydown", moveInList);
  document.getElementById("more").addEventListener("click", () => {
    const first = state.visible;
    state.visible += PAGE_ROWS;
    drawList();
    focusRow(document.querySelectorAll("#list button.open")[first]);
  });
  dialog.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (by === undefined || event.altKey || event.target.closest("pre, .scroll")) return;
    if (state.open !== null && state.rows[state.open + by]) openAnswer(state.open + by);
  });
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  dialog.addEventListener("close", () => {
    if (dialog.open) return; /* another answer was opened at once */
    keepAddress();
    const buttons = document.querySelectorAll("#list button.open");
    const row = buttons[state.open] || (state.opener?.isConnected ? state.opener : null);
    if (row) focusRow(row);
    state.open = null;
  });
  window.addEventListener("hashchange", () => {
    if (dialog.open) dialog.close();
    readAddress();
  });
  readAddress();
}

startItems();
