// One chart: a card with a title, uPlot, a legend that toggles lines, and a tooltip for pointer and keyboard.

const COLORS = 8;
const DASHES = [[], [7, 4], [2, 3], [10, 3, 2, 3]];
const FEW = 60; // points; so few get a dot each
const EVEN = /^eval_|^learning_rate$|^loss_scale$|_bytes$/; // figures that do not flicker, and are not smoothed
const LEGEND = 12; // lines; more are switched in the table of runs
const SHOWN = 8; // lines that a tip names at most
const FAR = 4; // a run that leaves the range of the others by so many of its heights may be left out of the axis
const CROWDED = 0.15; // of the axis: if the others had less than that, it is
const MEANT = /^learning_rate$|_per_second$|_bytes$|^loss_scale$|^mfu$|^data_wait$/; // figures that do not diverge
const FLAT = 1e-4; // of a value: smaller changes are not worth a whole axis

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function element(tag, given = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(given)) {
    if (value == null || value === false) continue;
    if (name === "text") node.textContent = value;
    else if (name === "class") node.className = value;
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children);
  return node;
}

/** A line sample for the legend, in the line's colour and dashes. */
function swatch(style) {
  const ns = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(ns, "svg");
  const line = document.createElementNS(ns, "line");
  for (const [name, value] of Object.entries({ width: 22, height: 10, "aria-hidden": "true" })) svg.setAttribute(name, value);
  for (const [name, value] of Object.entries({ x1: 1, x2: 21, y1: 5, y2: 5, "stroke-width": 2.5, "stroke-linecap": "round" }))
    line.setAttribute(name, value);
  line.setAttribute("class", `c${style.color}`);
  if (style.dash.length) line.setAttribute("stroke-dasharray", style.dash.join(" "));
  svg.append(line);
  return svg;
}

class Chart {
  constructor(page, spec) {
    this.page = page;
    this.spec = spec;
    this.hidden = new Set();
    this.plot = null;
    this.wide = false;
    const heading = element("h2", { text: spec.title });
    const grow = element("button", { type: "button", class: "quiet", "aria-pressed": "false", text: "Enlarge", onclick: () => this.enlarge(grow) });
    grow.setAttribute("aria-label", `Enlarge ${spec.title}`);
    this.frame = element("div", { class: "plot", tabindex: "0", role: "group", onkeydown: (event) => this.key(event) });
    this.frame.setAttribute("aria-label", `Chart of ${spec.title}. Arrow keys move the pointer, plus and minus zoom, Escape shows all.`);
    this.legend = element("div", { class: "legend" });
    this.beyond = element("div", { class: "beyond", hidden: true });
    this.full = false; // the axis reaches every run
    this.card = element("section", { class: "card chart" }, element("div", { class: "title" }, heading, grow), this.frame, this.beyond, this.legend);
    this.card.dataset.chart = spec.title;
    this.tip = element("div", { class: "tip", hidden: true });
    new ResizeObserver(() => this.resize()).observe(this.frame);
  }

  enlarge(button) {
    this.wide = !this.wide;
    this.card.classList.toggle("wide", this.wide);
    button.setAttribute("aria-pressed", this.wide);
    button.textContent = this.wide ? "Reduce" : "Enlarge";
    this.resize();
  }

  size() {
    return { width: Math.max(120, this.frame.clientWidth), height: this.wide ? 440 : 230 };
  }

  resize() {
    if (this.plot && this.frame.clientWidth) this.plot.setSize(this.size());
  }

  /** The lines of this chart: one per metric, or one per run. */
  lines() {
    const found = [];
    this.page.runs.forEach((run, number) => {
      this.spec.keys.forEach(([key, label], place) => {
        const points = run.points[key];
        if (!points || !points.x.length || (this.page.many && run.off)) return;
        const style = this.page.many ? run.style : { color: place % COLORS, dash: DASHES[place % DASHES.length] };
        found.push({ id: this.page.many ? run.name : key, label: this.page.many ? run.label : label, run, key, style, points });
      });
    });
    return found;
  }

  /** The lines as curves; smoothed curves of a single run have the raw values behind them. */
  curves() {
    const { axis, weight, many } = this.page;
    const found = [];
    for (const line of this.lines()) {
      if (this.hidden.has(line.id)) continue;
      const x = places(line.run, line.points.x, axis);
      const smoothed = weight > 0 && x.length > FEW && !EVEN.test(line.key);
      if (smoothed && !many) found.push({ ...line, x, y: line.points.y, faint: true });
      found.push({ ...line, x, y: smoothed ? smooth(line.points.y, weight) : line.points.y });
    }
    return found;
  }

  draw() {
    const { log, zoom } = this.page;
    this.shown = this.curves();
    const table = lineUp(this.shown, log, zoom || this.page.extent());
    this.exact = table.exact;
    if (this.plot) this.plot.destroy();
    this.frame.replaceChildren();
    this.plot = new uPlot(this.options(table.data), table.data, this.frame);
    this.plot.over.append(this.tip);
    this.setRange(zoom || this.page.extent(), table.data);
    this.drawLegend();
  }

  /** New points on the same lines. */
  update() {
    const shown = this.curves();
    const same = this.plot && shown.length === this.shown.length && shown.every((c, i) => c.id === this.shown[i].id && c.faint === this.shown[i].faint);
    if (!same) return this.draw();
    this.shown = shown;
    const range = this.page.zoom || this.page.extent();
    const table = lineUp(shown, this.page.log, range);
    this.exact = table.exact;
    this.quiet = true;
    this.plot.setData(table.data, false);
    this.setRange(range, table.data);
    this.drawLegend();
  }

  options(data) {
    const { axis, log, many } = this.page;
    const ink = css("--faint"), grid = css("--grid"), unit = this.spec.unit;
    const crowd = this.shown.length > 40;
    const font = '11px system-ui, "Noto Sans CJK SC", sans-serif';
    const common = { stroke: ink, font, grid: { stroke: grid, width: 1 }, ticks: { show: false }, border: { show: false } };
    const scale = { distr: log ? 3 : 1 };
    if (!log) scale.range = (u, low, high) => this.heights(low, high);
    return {
      ...this.size(),
      padding: [15, 22, 0, 0],
      legend: { show: false },
      focus: { alpha: crowd ? 0.15 : 0.35 },
      scales: { x: { time: false }, y: scale },
      axes: [
        { ...common, size: 30, space: 70, values: (u, splits) => splits.map((v) => (axis === "time" ? duration(v) : v % 1 ? "" : v.toLocaleString("en"))) },
        { ...common, size: unit ? 58 : 48, space: 34, values: (u, splits) => axisLabels(splits, unit) },
      ],
      cursor: {
        y: false,
        points: { size: (u, i) => (crowd || this.shown[i - 1]?.faint ? 0 : 7) },
        drag: { x: true, y: false, dist: 6 },
        focus: { prox: many ? 24 : -1 },
        sync: { key: "page", setSeries: false, filters: { pub: (type) => type !== "mouseup" && type !== "mousedown" && type !== "dblclick" } },
      },
      series: [
        {},
        ...this.shown.map((curve) => ({
          label: curve.label,
          stroke: css(`--c${curve.style.color}`),
          width: crowd ? 1 : 1.8,
          alpha: curve.faint ? 0.28 : crowd ? 0.6 : 1,
          dash: curve.faint ? [] : curve.style.dash,
          points: { show: !crowd && !curve.faint && curve.x.length <= FEW && (many ? curve.x.length < 3 : curve.key.startsWith("eval_") || curve.x.length < 3), size: 6 },
        })),
      ],
      hooks: {
        setCursor: [() => this.point()],
        setScale: [(u, key) => key === "x" && this.zoomed()],
        draw: [(u) => this.drawEvents(u), (u) => this.drawBest(u), () => this.drawBeyond()],
      },
    };
  }

  heights(low, high) {
    if (low == null || high == null) return [0, 1];
    [low, high] = this.withoutFar(low, high);
    if (this.spec.zero && low >= 0) return high > 0 ? [0, high * 1.08] : [0, 1];
    const size = Math.max(Math.abs(low), Math.abs(high));
    if (high - low <= FLAT * size) return size ? [low - 0.1 * size, high + 0.1 * size] : [-1, 1];
    return uPlot.rangeNum(low, high, 0.08, true);
  }

  /** The range of several runs without those that are far beyond the others: a diverged run would flatten them. */
  withoutFar(low, high) {
    this.far = [];
    if (!this.page.many || this.full || this.shown.length < 2 || MEANT.test(this.spec.keys[0][0])) return [low, high];
    const u = this.plot, [first, last] = u ? [u.scales.x.min, u.scales.x.max] : [-Infinity, Infinity];
    const ends = [];
    for (const curve of this.shown) {
      const range = finiteRange(curve, first ?? -Infinity, last ?? Infinity);
      if (range) ends.push({ curve, low: range[0], high: range[1] });
    }
    if (ends.length < 2) return [low, high];
    const middle = (values) => values.sort((a, b) => a - b)[(values.length - 1) >> 1];
    const top = middle(ends.map((e) => e.high)), bottom = -middle(ends.map((e) => -e.low));
    const size = Math.max(Math.abs(top), Math.abs(bottom));
    const height = Math.max(top - bottom, 0.01 * size) || 1;
    // Divergence leads away from zero: a run that began lower, or that became better, is none.
    const grown = (e) => Math.max(Math.abs(e.low), Math.abs(e.high)) > 2 * size;
    const far = (e) => grown(e) && (e.high > top + FAR * height || e.low < bottom - FAR * height);
    this.far = ends.filter(far);
    const near = ends.filter((e) => !far(e));
    const least = Math.min(...near.map((e) => e.low)), most = Math.max(...near.map((e) => e.high));
    if (this.far.length && near.length && most - least < CROWDED * (high - low)) return [least, most];
    this.far = [];
    return [low, high];
  }

  /** Which runs leave the axis, and the switch that makes it reach them. */
  drawBeyond() {
    const far = this.page.log ? [] : this.far || [];
    this.beyond.hidden = this.page.log || (!far.length && !this.full);
    const shown = JSON.stringify([this.full, far.map((e) => [e.curve.id, e.low, e.high])]);
    if (this.beyond.hidden || shown === this.beyond.dataset.shown) return;
    this.beyond.dataset.shown = shown;
    const { curve, low, high } = far[0] ?? {};
    const to = far.length && amount(Math.abs(high) >= Math.abs(low) ? high : low, this.spec.unit);
    const text = far.length === 1 ? `${curve.label} goes beyond the axis, to ${to}.` : `${far.length} runs go beyond the axis.`;
    const button = element("button", { type: "button", class: "quiet", text: this.full ? "Leave out what is far away" : "Show all of it",
      onclick: () => { this.full = !this.full; this.draw(); this.beyond.querySelector("button")?.focus(); } });
    this.beyond.replaceChildren(...(far.length ? [element("span", { text })] : []), button);
  }

  /** A star at the best value of each metric of the run. */
  drawBest(u) {
    if (this.page.many) return;
    const { ctx } = u, size = 5.5 * devicePixelRatio;
    for (const curve of this.shown) {
      const best = this.page.data.best?.[curve.key];
      if (!best || curve.faint || (this.page.log && best[1] <= 0)) continue;
      const x = u.valToPos(places(curve.run, [best[0]], this.page.axis)[0], "x", true), y = u.valToPos(best[1], "y", true);
      if (x < u.bbox.left - 1 || x > u.bbox.left + u.bbox.width + 1) continue;
      ctx.save();
      ctx.beginPath();
      for (let i = 0; i < 10; i++) {
        const angle = (Math.PI * i) / 5 - Math.PI / 2, far = i % 2 ? size * 0.45 : size;
        ctx.lineTo(x + far * Math.cos(angle), y + far * Math.sin(angle));
      }
      ctx.closePath();
      ctx.lineWidth = 3 * devicePixelRatio;
      ctx.lineJoin = "round";
      ctx.strokeStyle = css("--card");
      ctx.stroke();
      ctx.fillStyle = css(`--c${curve.style.color}`);
      ctx.fill();
      ctx.restore();
    }
  }

  /** Show these steps or seconds; curves that went through a grid go through another one, unless that was just done. */
  setRange([min, max], lined) {
    this.quiet = true;
    if (!this.exact && !lined) this.plot.setData(lineUp(this.shown, this.page.log, [min, max]).data, false);
    this.plot.setScale("x", { min, max });
    this.quiet = false;
  }

  /** The user has selected a range, or double-clicked to reset. */
  zoomed() {
    if (this.quiet || !this.plot || this.plot.status === 0) return;
    const { min, max } = this.plot.scales.x;
    const [low, high] = this.page.extent();
    this.page.setZoom(min <= low && max >= high ? null : [min, max], this);
  }

  /** The tooltip at the pointer. */
  point() {
    const u = this.plot;
    if (!u) return;
    const { idx, left, top } = u.cursor;
    const own = u.cursor.event != null || this.byKey;
    if (idx == null || left < 0 || !this.shown.length) {
      this.tip.hidden = true;
      return;
    }
    const x = u.posToVal(left, "x");
    const found = [];
    for (const curve of this.shown) {
      if (curve.faint || !curve.x.length) continue;
      let i = search(curve.x, x);
      if (i === curve.x.length || (i > 0 && x - curve.x[i - 1] < curve.x[i] - x)) i--;
      const value = curve.y[i];
      found.push({ curve, value, x: curve.x[i], away: Math.abs(u.valToPos(value, "y") - top) });
    }
    const count = found.length;
    if (count > SHOWN) found.sort((a, b) => a.away - b.away);
    this.page.pointed = this.page.axis === "time" ? duration(x) : `step ${Math.round(x).toLocaleString("en")}`;
    const rows = found.slice(0, SHOWN).map(({ curve, value }) =>
      element("div", {}, swatch(curve.style), element("span", { text: curve.label }), element("b", { text: amount(value, this.spec.unit) })));
    if (count > SHOWN) rows.push(element("div", { class: "more", text: `and ${count - SHOWN} more` }));
    this.tip.replaceChildren(element("div", { class: "where", text: this.page.pointed }), ...rows);
    this.tip.hidden = !own && !this.card.matches(":hover, :focus-within");
    const width = u.over.clientWidth;
    this.tip.style.left = left > width / 2 ? "auto" : `${left + 14}px`;
    this.tip.style.right = left > width / 2 ? `${width - left + 14}px` : "auto";
  }

  key(event) {
    const u = this.plot;
    const width = u.over.clientWidth, left = u.cursor.left < 0 ? width / 2 : u.cursor.left;
    const jumps = { ArrowLeft: left - width / 50, ArrowRight: left + width / 50, Home: 0, End: width - 1 };
    if (event.key in jumps) {
      this.byKey = true;
      u.setCursor({ left: Math.max(0, Math.min(width - 1, jumps[event.key])), top: u.over.clientHeight / 2 });
      this.byKey = false;
    } else if (event.key === "+" || event.key === "=" || event.key === "-") {
      const { min, max } = u.scales.x, centre = u.posToVal(left, "x"), factor = event.key === "-" ? 2 : 0.5;
      const [low, high] = this.page.extent();
      const range = [Math.max(low, centre - (centre - min) * factor), Math.min(high, centre + (max - centre) * factor)];
      this.page.setZoom(range[0] <= low && range[1] >= high ? null : range);
    } else if (event.key === "Escape") {
      this.tip.hidden = true;
      this.page.setZoom(null);
    } else return;
    event.preventDefault();
  }

  /** A dashed line and a letter at each event; the table of events explains the letters. */
  drawEvents(u) {
    const { ctx, bbox } = u;
    ctx.save();
    ctx.font = `600 ${10 * devicePixelRatio}px system-ui, sans-serif`;
    ctx.textAlign = "center";
    ctx.strokeStyle = ctx.fillStyle = css("--mark");
    ctx.lineWidth = devicePixelRatio;
    ctx.setLineDash([2 * devicePixelRatio, 3 * devicePixelRatio]);
    const words = [];
    for (const { x, letter } of this.page.marks()) {
      const place = u.valToPos(x, "x", true);
      if (place < bbox.left || place > bbox.left + bbox.width) continue;
      ctx.beginPath();
      ctx.moveTo(place, bbox.top);
      ctx.lineTo(place, bbox.top + bbox.height);
      ctx.stroke();
      const last = words.at(-1);
      if (last && place - last.place < 10 * devicePixelRatio) last.letters.add(letter);
      else words.push({ place, letters: new Set(letter) });
    }
    for (const { place, letters } of words)
      ctx.fillText([...letters].slice(0, 3).join(""), Math.max(bbox.left + 6, place), bbox.top - 5 * devicePixelRatio);
    ctx.restore();
  }

  drawLegend() {
    const lines = this.lines();
    if (lines.length < 2 || lines.length > LEGEND || this.page.many) return this.legend.replaceChildren();
    this.legend.replaceChildren(...lines.map((line) => {
      const last = line.points.y[line.points.y.length - 1];
      const button = element("button", { type: "button", "aria-pressed": String(!this.hidden.has(line.id)) },
        swatch(line.style), element("span", { text: line.label }), element("span", { class: "value", text: amount(last, this.spec.unit) }));
      button.addEventListener("click", () => {
        if (!this.hidden.delete(line.id)) this.hidden.add(line.id);
        this.draw();
        this.legend.querySelectorAll("button")[lines.indexOf(line)]?.focus();
      });
      return button;
    }));
  }
}
