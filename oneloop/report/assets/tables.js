// Tables. Text from a run is always inserted as text, never as markup.

// Events that are marked in the charts with a letter; the others are only listed.
const LETTERS = { resumed: "R", preempted: "P", died: "K", nonfinite: "N", loss_spike: "S", rolled_back: "B", out_of_memory: "M", save_failed: "D", save_waited: "W", profiled: "T", failed: "F" };

/** The text with line break opportunities inside names, but not inside numbers. */
function breakable(text) {
  return text.split(/(?<=[_/])(?=.)/).flatMap((part, i) => (i ? [element("wbr"), part] : [part]));
}

function table(heads, rows, numbers = []) {
  const cell = (tag, value, i) => {
    const node = element(tag, { class: numbers.includes(i) ? "number" : null });
    node.append(...(value instanceof Node ? [value] : breakable(String(value ?? ""))));
    if (tag === "th") node.scope = "col";
    return node;
  };
  const body = element("tbody", {}, ...rows.map((row) => element("tr", {}, ...row.map((value, i) => cell("td", value, i)))));
  const head = element("thead", {}, element("tr", {}, ...heads.map((value, i) => cell("th", value, i))));
  return element("div", { class: "scroll", tabindex: "0", role: "region" }, element("table", {}, head, body));
}

function section(id, title, content, note = "") {
  const label = `heading-${id}`;
  const card = element("section", { class: "card facts", id, "aria-labelledby": label }, element("h2", { id: label, text: title }));
  if (note) card.append(element("p", { class: "note", text: note }));
  content.setAttribute?.("aria-labelledby", label);
  card.append(content);
  return card;
}

const SIGNS = { whole: "✓", foreign: "✓", damaged: "✕", best: "★", latest: "→", running: "●", finished: "✓", failed: "✕", "not saved": "✕", died: "✕", nonfinite: "!", loss_spike: "!", rolled_back: "!", save_failed: "!", out_of_memory: "!" };

function badge(name, kind = name) {
  return element("span", { class: `badge ${kind.replaceAll(" ", "-")}`, text: `${SIGNS[kind] ? SIGNS[kind] + " " : ""}${name}` });
}

function drawTables(page) {
  const d = page.data, found = [];
  if (d.events.length)
    found.push(section("events", "Events", table(["", "Step", "What", "More", "Time"],
      d.events.map((e) => [LETTERS[e.kind] ? element("span", { class: "letter", text: LETTERS[e.kind] }) : "", e.step.toLocaleString("en"), badge(e.title, e.kind), e.text, e.time]), [1]),
      d.events.some((e) => LETTERS[e.kind]) ? "Letters mark the event in the charts." : ""));
  if (d.checkpoints.length) {
    const why = d.checkpoints.some((c) => c.why);
    found.push(section("checkpoints", "Checkpoints", table(["Name", "State", "Size", "Written", ...(why ? ["Why"] : [])],
      d.checkpoints.map((c) => [c.name, element("span", {}, badge(c.state), ...c.marks.flatMap((m) => [" ", badge(m)])), c.size, c.written, ...(why ? [c.why] : [])]), [2])));
  }
  if (d.figures.length)
    found.push(section("figures", "Figures", table(["Name", "Last", "Best", "At step"], d.figures, [1, 2, 3])));
  if (d.arguments.length)
    found.push(section("arguments", "Arguments that differ from the defaults", table(["Name", "Value", "Default"], d.arguments)));
  if (d.environment.length)
    found.push(section("environment", "Framework, device and versions", table(["What", "Value"], d.environment)));
  document.getElementById("tables").replaceChildren(...found);
}

function drawSummary(page) {
  const tiles = page.data.summary.filter(([label]) => label !== "state").map(([label, value, note]) => {
    const values = [element("dd", { class: "value", text: value })];
    if (note) values.push(element("dd", { class: "note", text: note }));
    return element("div", {}, element("dt", { text: label }), ...values);
  });
  document.getElementById("summary").replaceChildren(...tiles);
  const state = page.data.summary.find(([label]) => label === "state");
  const place = document.getElementById("state");
  place.hidden = !state || state[1] === "unknown";
  if (state) {
    place.className = `badge ${state[1].replaceAll(" ", "-")}`;
    place.textContent = `${SIGNS[state[1]] ? SIGNS[state[1]] + " " : ""}${state[1]}${state[2] ? `: ${state[2]}` : ""}`;
  }
}

/** Notes if the logs were not read completely. */
function drawNotes(d, many) {
  const found = [];
  const those = (count) => (many ? `The log${count > 1 ? "s" : ""} of ${count.toLocaleString("en")} run${count > 1 ? "s" : ""}` : "The log");
  if (d.reading) found.push(`${those(d.reading)} ${d.reading > 1 ? "are" : "is"} still being read.`);
  const partly = Number(d.partly);
  if (partly) found.push(`${those(partly)} ${partly > 1 ? "were" : "was"} read in part: evenly spaced sections, every evaluation, and all loss spikes and NaNs.`);
  const place = document.getElementById("notes");
  place.hidden = !found.length;
  place.textContent = found.join(" ");
}

function drawDifferences(links) {
  const place = document.getElementById("differences");
  place.hidden = !links.length;
  place.replaceChildren("Where these part: ", ...links.flatMap(([text, href], i) => [i ? ", " : "", element("a", { href, text })]));
}

// -- several runs

const PAGE = 50; // rows that the table of runs shows at once

function drawRuns(page) {
  const d = page.data, place = document.getElementById("runs");
  if (!place.firstChild) {
    const filter = element("input", { type: "search", id: "filter", placeholder: "names, values, state", oninput: () => fill(page, true) });
    const all = element("button", { type: "button", text: "Show all", onclick: () => turn(page, () => true) });
    const none = element("button", { type: "button", text: "Show none", onclick: () => turn(page, () => false) });
    const listed = element("button", { type: "button", text: "Show only these", onclick: () => turn(page, (run) => page.listed.includes(run)) });
    const bar = element("div", { class: "runbar" }, element("label", { for: "filter", text: "Filter" }), filter, all, none, listed, element("button", { type: "button", text: "Download CSV", onclick: () => download(page) }), element("span", { id: "count", class: "note", role: "status" }));
    const content = element("div", { id: "runtable" });
    place.replaceChildren(element("section", { class: "card facts", "aria-label": "Runs" }, element("h2", { text: "Runs" }), bar, content));
    page.sort = { column: null, down: false };
    page.rowsShown = PAGE;
  }
  fill(page, false);
}

function turn(page, wanted) {
  for (const run of page.runs) run.off = !wanted(run);
  fill(page, false);
  page.redraw();
}

/** The columns of the table of runs: how to get the sort value, and what to show. */
function columns(page) {
  const d = page.data;
  const found = [
    { name: "Run", show: (run) => (run.link ? element("a", { href: run.link, text: run.name }) : run.name), value: (run) => run.name },
    { name: "State", show: (run) => badge(run.status), value: (run) => run.status },
    { name: "Step", number: true, show: (run) => run.step.toLocaleString("en"), value: (run) => run.step },
  ];
  d.differing.slice(0, 12).forEach((name, i) => found.push({ name, show: (run) => run.values[i], value: (run) => sortable(run.values[i]) }));
  for (const [key, higher] of d.metrics.slice(0, 8)) {
    const values = page.runs.map((run) => run.metrics[key]?.[3]).filter((value) => value != null);
    const top = new Set(values).size > 1 ? values.reduce((a, b) => ((higher ? b > a : b < a) ? b : a)) : null;
    const text = (run) => run.metrics[key]?.[1] ?? "";
    const best = (run) => (top != null && run.metrics[key]?.[3] === top ? element("b", { class: "top", text: `★ ${text(run)}`, title: "the best of these runs" }) : text(run));
    found.push({ name: `${key}, last`, number: true, show: (run) => run.metrics[key]?.[0] ?? "", value: (run) => sortable(run.metrics[key]?.[0]) });
    found.push({ name: `${key}, ${higher ? "highest" : "lowest"}`, number: true, show: best, value: (run) => run.metrics[key]?.[3] ?? "" });
  }
  return found;
}

/** The listed runs as a file for spreadsheets: every argument that differs and every metric. */
function download(page) {
  const rows = [page.data.csv, ...page.listed.map((run) => run.csv)];
  const url = URL.createObjectURL(new Blob([rows.join("\r\n") + "\r\n"], { type: "text/csv" }));
  element("a", { href: url, download: "runs.csv" }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

function sortable(text) {
  const plain = String(text ?? "").replaceAll(",", "");
  return plain !== "" && !Number.isNaN(Number(plain)) ? Number(plain) : String(text ?? "");
}

function compare(a, b) {
  if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
  return a < b ? -1 : a > b ? 1 : 0;
}

function fill(page, filtered) {
  if (filtered) page.rowsShown = PAGE;
  const wanted = document.getElementById("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  const heads = columns(page);
  const text = (run) => [run.name, run.label, run.status, ...run.values].join(" ").toLowerCase();
  page.listed = page.runs.filter((run) => wanted.every((word) => text(run).includes(word)));
  const by = heads[page.sort.column];
  if (by) page.listed = [...page.listed].sort((a, b) => compare(by.value(a), by.value(b)) * (page.sort.down ? -1 : 1));
  const rows = page.listed.slice(0, page.rowsShown).map((run) => {
    const box = element("input", { type: "checkbox", "aria-label": `Show ${run.name}`, onchange: () => { run.off = !box.checked; count(page); page.redraw(); } });
    box.checked = !run.off;
    const row = [element("label", { class: "pick" }, box, swatch(run.style)), ...heads.map((head) => head.show(run))];
    return row;
  });
  const titles = heads.map((head, i) => {
    const sorted = page.sort.column === i;
    return element("button", { type: "button", class: "sort", text: `${head.name}${sorted ? (page.sort.down ? " ↓" : " ↑") : ""}`,
      onclick: () => { page.sort = { column: i, down: sorted ? !page.sort.down : false }; fill(page, false); } });
  });
  const numbers = heads.flatMap((head, i) => (head.number ? [i + 1] : []));
  const drawn = table(["", ...titles], rows, numbers);
  drawn.setAttribute("aria-label", "Runs");
  const parts = [drawn];
  if (page.listed.length > page.rowsShown)
    parts.push(element("button", { type: "button", text: `${page.listed.length - page.rowsShown} more rows`, onclick: () => { page.rowsShown += 10 * PAGE; fill(page, false); } }));
  document.getElementById("runtable").replaceChildren(...parts);
  count(page);
}

function count(page) {
  const shown = page.runs.filter((run) => !run.off).length;
  document.getElementById("count").textContent = `${shown} of ${page.runs.length} drawn, ${page.listed.length} listed`;
}
