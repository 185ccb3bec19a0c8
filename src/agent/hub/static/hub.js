// Two comforts on top of a page that works without them: the lanes stay current, and a click on a heading sorts here.
"use strict";

const PERIOD = 2000; // milliseconds between looks at the lanes

const settledIn = (lane) => lane.done + lane.partial + lane.rejected + lane.skipped;

function stateOf(status) {
  if (status.queue !== "ok") return "The queue server cannot be reached";
  const held = Object.keys(status.held);
  if (held.length && status.settled_or_retrying) return `Held: ${held.join(", ")}`;
  if (status.scans.open) return "Looking through folders";
  if (status.idle) return "All done";
  return status.settled_or_retrying ? "Waiting to try some files again" : "Working";
}

function showLanes(status) {
  for (const [name, lane] of Object.entries(status.lanes)) {
    const row = document.querySelector(`#lanes [data-lane="${CSS.escape(name)}"]`);
    if (!row) continue;
    const counts = { ...lane, settled: settledIn(lane) };
    for (const cell of row.querySelectorAll("[data-count]")) cell.textContent = counts[cell.dataset.count];
    const bar = row.querySelector("progress");
    bar.max = lane.total || 1;
    bar.value = counts.settled;
    row.querySelector(".late").hidden = !lane.retrying;
    row.querySelector(".bad").hidden = !lane.rejected;
    row.classList.toggle("idle", !lane.total && !lane.queued && !lane.active);
  }
}

function showOthers(status) {
  for (const [task, count] of Object.entries(status.others)) {
    const cell = document.querySelector(`#others [data-task="${CSS.escape(task)}"]`);
    if (cell) cell.textContent = count;
  }
}

const MOST_NOW = 8;
const SOON = 3; // seconds under which a job is over before anybody has read its name

const lengthOf = (seconds) => {
  const whole = Math.round(seconds);
  const two = (number) => String(number).padStart(2, "0");
  const [hours, minutes] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60];
  return hours ? `${hours}:${two(minutes)}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)}`;
};

function cell(kind, text) {
  const span = document.createElement("span");
  span.className = kind;
  span.textContent = text;
  return span;
}

// What runs, and how far it is: a long set is seen to move.
function showNow(status) {
  const found = status.active.filter((job) => job.note || job.seconds >= SOON);
  found.sort((a, b) => a.since - b.since || (a.key < b.key ? -1 : 1));
  const items = found.slice(0, MOST_NOW).map((job) => {
    const item = document.createElement("li");
    const name = cell("name", job.path.replace(/\/+$/, "").split("/").pop() || job.path);
    name.title = job.path;
    const bar = document.createElement("progress");
    bar.value = job.progress;
    bar.setAttribute("aria-label", name.textContent);
    item.append(cell("lane", job.lane), name, cell("far", job.note || `${lengthOf(job.seconds)} so far`), bar);
    return item;
  });
  if (found.length > MOST_NOW) {
    const more = document.createElement("li");
    more.className = "more";
    more.textContent = `and ${found.length - MOST_NOW} more`;
    items.push(more);
  }
  document.getElementById("now").replaceChildren(...items);
}

// Whether a reload would take something from somebody's hands: a filter has the focus, or is not as it was sent.
function isTyping() {
  const fields = [...document.querySelectorAll("form input")];
  return fields.some(
    (field) =>
      field === document.activeElement || field.value !== field.defaultValue || field.checked !== field.defaultChecked,
  );
}

function showNews(status) {
  const now = Object.values(status.lanes).reduce((sum, lane) => sum + settledIn(lane), status.files);
  const news = now !== Number(document.body.dataset.settled);
  if (news && document.querySelector(".empty") && !isTyping()) {
    location.reload();
    return;
  }
  const link = document.getElementById("news");
  if (!link) return;
  link.hidden = !news;
  link.textContent = "Show new results";
  link.href = location.href;
}

// The hub writes agents and queues, here as at first. Not under somebody who is at one of its links.
async function showOverview() {
  const overview = document.getElementById("overview");
  const room = overview.querySelector("div");
  if (!overview.open || room.contains(document.activeElement)) return;
  const response = await fetch("/overview", { signal: AbortSignal.timeout(10 * PERIOD) });
  if (!response.ok) return;
  room.innerHTML = await response.text();
  document.getElementById("overview-summary").textContent = room.querySelector("[data-summary]").dataset.summary;
}

async function refresh() {
  const state = document.getElementById("state");
  let text = "The hub does not answer";
  try {
    const response = await fetch("/api/status", { signal: AbortSignal.timeout(10 * PERIOD) });
    if (response.ok) {
      const status = await response.json();
      showLanes(status);
      showOthers(status);
      showNow(status);
      showNews(status);
      text = stateOf(status);
      await showOverview();
    } else if (response.status === 401) {
      text = "Your session is over; load the page again";
    }
  } catch {
    // Said in the header; the next look may find it again.
  }
  if (state.textContent !== text) state.textContent = text;
  setTimeout(refresh, PERIOD);
}

function sortRows(table, header) {
  const column = [...header.parentElement.children].indexOf(header);
  const direction = header.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
  const numeric = header.dataset.kind === "number";
  const collator = new Intl.Collator(undefined, { numeric: true, sensitivity: "base" });
  const rows = [...table.tBodies[0].rows].map((row) => ({ row, value: row.cells[column].dataset.value }));
  rows.sort((a, b) => {
    if (!a.value || !b.value) return (a.value ? 0 : 1) - (b.value ? 0 : 1); // unknowns last, either way
    const order = numeric ? a.value - b.value : collator.compare(a.value, b.value);
    return direction === "ascending" ? order : -order;
  });
  table.tBodies[0].append(...rows.map(({ row }) => row));
  for (const other of header.parentElement.querySelectorAll("[aria-sort]")) other.setAttribute("aria-sort", "none");
  header.setAttribute("aria-sort", direction);
}

// With more rows than one page holds, only the server can sort: the headings stay links.
const table = document.querySelector("table[data-sortable]");
table?.tHead.addEventListener("click", (event) => {
  const link = event.target.closest("a");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  sortRows(table, link.closest("th"));
});

setTimeout(refresh, PERIOD);
