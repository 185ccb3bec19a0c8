// A record's stages while they happen: each event of /api/progress is the last word of its service.

const table = document.getElementById("stages");
const live = document.getElementById("live");

function rowOf(service) {
  const known = table.querySelector(`[data-service="${CSS.escape(service)}"]`);
  if (known) return known;
  const row = table.tBodies[0].insertRow();
  row.dataset.service = service;
  for (const kind of ["mark", "mark", "name", "fact"]) row.insertCell().className = kind;
  row.cells[0].textContent = service;
  const state = document.createElement("span");
  state.className = "state";
  row.cells[1].append(state);
  return row;
}

function show(said) {
  const [, state, far, when] = rowOf(said.service).cells;
  state.firstElementChild.textContent = said.state;
  state.firstElementChild.classList.toggle("alive", said.state === "running");
  far.replaceChildren(said.note ?? "");
  if (said.state === "running" && said.progress !== undefined) {
    const bar = document.createElement("progress");
    bar.value = said.progress;
    bar.setAttribute("aria-label", said.service);
    far.append(bar);
  }
  when.textContent = new Date(1000 * said.at).toISOString().slice(0, 16).replace("T", " ");
  document.getElementById("nothing").hidden = true;
}

const events = new EventSource(`/api/progress/${table.dataset.record}`);
events.onopen = () => (live.textContent = "live");
events.onmessage = (event) => show(JSON.parse(event.data));
events.onerror = () => (live.textContent = events.readyState === EventSource.CLOSED ? "the hub tells no more; load the page again" : "the hub does not answer");
addEventListener("pagehide", () => events.close());
