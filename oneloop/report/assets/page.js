// The page: its controls, charts and tables, and live updates with `oneloop watch`.

const POLL = 1000; // milliseconds between two questions for what is new

class Page {
  constructor(data) {
    this.data = data;
    this.many = data.kind === "compare";
    this.axis = "step";
    this.weight = 0;
    this.log = false;
    this.zoom = null;
    this.runs = [];
    this.charts = [];
    data.runs.forEach((run) => this.takeRun(run));
    document.getElementById("title").textContent = data.title;
    this.readSwitches();
    this.facts();
    this.makeCharts();
    if (data.live) this.watch();
  }

  takeRun(packed) {
    const number = this.runs.length;
    const points = Object.fromEntries(Object.entries(packed.points).map(([key, pair]) => [key, unpack(pair)]));
    const style = { color: number % COLORS, dash: DASHES[(number + Math.floor(number / COLORS)) % DASHES.length] };
    this.runs.push({ ...packed, points, clock: unpack(packed.clock), style, off: false });
  }

  // -- text and tables

  facts() {
    if (this.many) drawRuns(this);
    else {
      drawSummary(this);
      drawTables(this);
    }
    drawNotes(this.data, this.many);
    drawDifferences(this.data.differences || []);
    document.getElementById("footer").textContent = `oneloop · ${this.data.written}`;
  }

  nothing() {
    if (this.data.reading) return "Curves appear when the first log has been read.";
    return this.data.live ? "Nothing has been logged yet. Curves appear with the first log." : "Nothing was logged.";
  }

  marks() {
    if (this.many) return [];
    const run = this.runs[0];
    return this.data.events.filter((e) => LETTERS[e.kind]).map((e) => ({ x: places(run, [e.step], this.axis)[0], letter: LETTERS[e.kind] }));
  }

  // -- charts

  makeCharts() {
    const known = new Map(this.charts.map((chart) => [chart.spec.title, chart]));
    this.charts = this.data.charts.map((spec) => {
      const chart = known.get(spec.title) || new Chart(this, spec);
      chart.spec = spec;
      return chart;
    });
    const place = document.getElementById("charts");
    const cards = this.charts.map((chart) => chart.card);
    if (!cards.length) cards.push(element("p", { class: "card note", text: this.nothing() }));
    if (place.childNodes.length !== cards.length || cards.some((card, i) => place.childNodes[i] !== card)) place.replaceChildren(...cards);
    this.redraw();
  }

  /** Visible charts are drawn at once, the others when they scroll into view. */
  redraw() {
    if (!this.sight) this.sight = new IntersectionObserver((seen) => seen.forEach((s) => s.isIntersecting && this.drawWaiting(s.target)), { rootMargin: "200px" });
    this.sight.disconnect();
    for (const chart of this.charts) {
      chart.waits = true;
      this.sight.observe(chart.card);
    }
  }

  drawWaiting(card) {
    const chart = this.charts.find((c) => c.card === card);
    if (chart?.waits) {
      chart.waits = false;
      chart.draw();
    }
  }

  /** From the first to the last point of all charts, so that all charts have the same x axis. */
  extent() {
    const keys = new Set(this.data.charts.flatMap((spec) => spec.keys.map(([key]) => key)));
    const ends = [];
    for (const run of this.runs) for (const [key, { x }] of Object.entries(run.points))
      if (x.length && keys.has(key) && !run.off) ends.push({ x: places(run, [x[0], x[x.length - 1]], this.axis) });
    return extent(ends);
  }

  setZoom(range, from) {
    this.zoom = range;
    document.getElementById("reset").disabled = !range;
    for (const chart of this.charts) {
      if (!chart.plot || chart.waits || (chart === from && chart.exact)) continue;
      chart.setRange(range || this.extent());
    }
  }

  // -- controls

  readSwitches() {
    const on = (id, event, act) => document.getElementById(id).addEventListener(event, act);
    document.querySelectorAll("input[name=axis]").forEach((radio) => radio.addEventListener("change", () => {
      this.axis = radio.value;
      this.zoom = null;
      document.getElementById("reset").disabled = true;
      this.redraw();
    }));
    on("smoothing", "input", (event) => {
      this.weight = Number(event.target.value);
      document.getElementById("smoothed").textContent = event.target.value;
      clearTimeout(this.sliding);
      this.sliding = setTimeout(() => this.redraw(), 60);
    });
    on("log", "change", (event) => { this.log = event.target.checked; this.redraw(); });
    on("reset", "click", () => this.setZoom(null));
    on("theme", "click", () => this.setTheme({ system: "light", light: "dark", dark: "system" }[this.theme]));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.redraw());
    let kept = null;
    try { kept = localStorage.getItem("oneloop-theme"); } catch { /* a page from a file may have no storage */ }
    this.setTheme(["light", "dark"].includes(kept) ? kept : "system", true);
  }

  setTheme(name, first = false) {
    this.theme = name;
    if (name === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = name;
    document.getElementById("theme").textContent = `Theme: ${name}`;
    try { localStorage.setItem("oneloop-theme", name); } catch { /* as above */ }
    if (!first) this.redraw();
  }

  // -- live updates

  async watch() {
    const sign = document.getElementById("live");
    sign.hidden = false;
    for (;;) {
      let text = "● live";
      try {
        // A run that resumes after a stop is sent completely again, so that a thousand runs do not make the URL too long.
        const going = this.runs.filter((run) => !this.many || run.status === "running");
        const known = going.map((run) => `${run.id}:${run.generation}:${run.entries}`).join(",");
        const answer = await fetch(`${this.data.live}?known=${known}&since=${this.data.version}`, { cache: "no-store" });
        if (!answer.ok) throw new Error(answer.status);
        const news = await answer.json();
        if (news.kind !== this.data.kind) return location.reload();
        this.take(news);
      } catch {
        text = "○ not connected";
      }
      if (sign.textContent !== text) sign.textContent = text;
      await new Promise((then) => setTimeout(then, POLL));
    }
  }

  /** An update: complete runs, or points that follow the known ones and curves that replace them. */
  take(news) {
    let more = false;
    for (const fresh of news.runs) {
      const place = this.runs.findIndex((run) => run.id === fresh.id);
      if (fresh.whole || place < 0) {
        const number = place < 0 ? this.runs.length : place;
        const before = this.runs.splice(number);
        this.takeRun(fresh);
        if (place >= 0) this.runs[number].off = before[0].off;
        this.runs.push(...before.slice(place < 0 ? 0 : 1));
        more = true;
        continue;
      }
      const run = this.runs[place];
      for (const [key, [x, y]] of Object.entries(fresh.added)) {
        const points = run.points[key] || (run.points[key] = { x: [], y: [] });
        x.forEach((step, i) => { points.x.push(step); points.y.push(y[i] ?? NaN); });
        more = true;
      }
      for (const [key, pair] of Object.entries(fresh.replaced)) {
        run.points[key] = unpack(pair);
        more = true;
      }
      const last = run.clock.x.at(-1) ?? -1;
      fresh.clock.forEach(([step, seconds]) => { if (step > last) { run.clock.x.push(step); run.clock.y.push(seconds); } });
      const { added, replaced, clock, ...rest } = fresh;
      Object.assign(run, rest);
    }
    const titles = JSON.stringify(this.data.charts);
    const words = news.runs.length || news.facts.reading !== this.data.reading;
    Object.assign(this.data, news.facts, { version: news.version });
    if (words) this.facts();
    if (JSON.stringify(this.data.charts) !== titles || !this.charts.length) this.makeCharts();
    else if (more) this.charts.forEach((chart) => chart.plot && !chart.waits && chart.update());
  }
}

window.oneloopPage = new Page(JSON.parse(document.getElementById("data").textContent));
window.oneloopPage.axisLabels = axisLabels;
