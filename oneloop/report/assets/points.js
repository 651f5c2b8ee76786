// Points: decoding, converting between axes, smoothing, and aligning several curves.

const CELLS = 1500000; // values that one chart lines up exactly; beyond it curves go through a grid

const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer;

/** Decode two packed arrays to {x, y}. */
function unpack([steps, values]) {
  const raw = bytes(steps.slice(1));
  const x = steps[0] === "u" ? new Uint32Array(raw) : new Float64Array(raw);
  return { x: Array.from(x), y: Array.from(new Float32Array(bytes(values))) };
}

/** The first index whose value is not below `wanted`. */
function search(sorted, wanted) {
  let low = 0, high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] < wanted) low = middle + 1; else high = middle;
  }
  return low;
}

/** The value of a curve at x, by linear interpolation. */
function between(xs, ys, x) {
  const i = search(xs, x);
  if (i === 0) return ys[0];
  if (i === xs.length) return ys[xs.length - 1];
  const span = xs[i] - xs[i - 1];
  return span ? ys[i - 1] + ((ys[i] - ys[i - 1]) * (x - xs[i - 1])) / span : ys[i];
}

/** The x values of a curve's points: steps, or seconds of training. */
function places(run, steps, axis) {
  if (axis === "step" || !run.clock.x.length) return steps;
  return steps.map((step) => between(run.clock.x, run.clock.y, step));
}

/** A bias-corrected exponential moving average; non-finite values stay gaps. */
function smooth(values, weight) {
  if (!weight) return values;
  let average = 0, total = 0;
  return values.map((value) => {
    if (!Number.isFinite(value)) return value;
    average = weight * average + (1 - weight) * value;
    total = weight * total + (1 - weight);
    return average / total;
  });
}

/** Curves as one table for uPlot: undefined where a curve has no point, null where it has a gap. */
function lineUp(curves, log, range) {
  const drawn = (value) => (Number.isFinite(value) && !(log && value <= 0) ? value : null);
  const all = new Set();
  for (const curve of curves) for (const x of curve.x) {
    all.add(x);
    if (all.size * curves.length > CELLS) return { data: throughGrid(curves, drawn, range), exact: false };
  }
  const xs = Float64Array.from(all).sort();
  const rows = curves.map((curve) => {
    const row = new Array(xs.length);
    let i = 0;
    curve.x.forEach((x, j) => {
      while (xs[i] < x) i++;
      row[i] = drawn(curve.y[j]);
    });
    return row;
  });
  return { data: [Array.from(xs), ...rows], exact: true };
}

/** Many curves on common columns: the lowest and highest value of each interval, in order. */
function throughGrid(curves, drawn, range) {
  const [low, high] = range || extent(curves);
  const columns = Math.max(100, Math.min(750, Math.floor(CELLS / curves.length / 2)));
  const width = (high - low) / columns || 1;
  const xs = Array.from({ length: 2 * columns + 2 }, (_, i) => low + (width * (i - 0.5)) / 2);
  xs[0] = low;
  xs[2 * columns + 1] = high;
  const rows = curves.map((curve) => {
    const row = new Array(xs.length);
    const first = search(curve.x, low);
    if (first > 0 && first < curve.x.length) row[0] = drawn(between(curve.x, curve.y, low));
    let i = first;
    for (; i < curve.x.length && curve.x[i] <= high; i++) {
      const slot = 1 + 2 * Math.min(columns - 1, Math.floor((curve.x[i] - low) / width));
      const value = drawn(curve.y[i]);
      const [a, b] = [row[slot], row[slot + 1]];
      if (a === undefined) row[slot] = value;
      else if (value !== null && a === null) row[slot] = value;
      else if (value !== null) {
        const least = Math.min(a, b ?? a, value), most = Math.max(a, b ?? a, value);
        if (value === least) [row[slot], row[slot + 1]] = [most, least];
        else if (value === most) [row[slot], row[slot + 1]] = [least, most];
      }
    }
    if (i > 0 && i < curve.x.length) row[2 * columns + 1] = drawn(between(curve.x, curve.y, high));
    return row;
  });
  return [xs, ...rows];
}

/** The x range of curves. */
function extent(curves) {
  let low = Infinity, high = -Infinity;
  for (const { x } of curves) if (x.length) {
    low = Math.min(low, x[0]);
    high = Math.max(high, x[x.length - 1]);
  }
  return low <= high ? [low, high] : [0, 1];
}

// -- formatting of numbers

function amount(value, unit) {
  if (value == null || !Number.isFinite(value)) return "–";
  if (unit === "bytes") return byteSize(value);
  const size = Math.abs(value);
  if (size >= 1e9 || (size > 0 && size < 1e-3)) return value.toExponential(2).replace(/\.?0+e/, "e").replace("e+", "e");
  if (size >= 1000) return value.toLocaleString("en", { maximumFractionDigits: 1 });
  return String(Number(value.toPrecision(4)));
}

/** Labels of an axis, with as many digits as tell neighbours apart. */
function axisLabels(splits, unit) {
  const given = splits.filter((value) => value != null && Number.isFinite(value));
  if (unit === "bytes" || new Set(given.map((value) => amount(value, unit))).size === given.length)
    return splits.map((value) => (value == null ? "" : amount(value, unit)));
  for (let digits = 5; ; digits++) {
    const labels = given.map((value) => String(Number(value.toPrecision(digits))));
    if (new Set(labels).size === given.length || digits === 12)
      return splits.map((value) => (value == null ? "" : String(Number(value.toPrecision(digits)))));
  }
}

/** [lowest, highest] of a curve's finite values in a range of x; null without any. */
function finiteRange(curve, first, last) {
  let low = Infinity, high = -Infinity;
  curve.x.forEach((x, i) => {
    const value = curve.y[i];
    if (x < first || x > last || !Number.isFinite(value)) return;
    if (value < low) low = value;
    if (value > high) high = value;
  });
  return low <= high ? [low, high] : null;
}

function byteSize(value) {
  for (const unit of ["B", "kB", "MB", "GB", "TB"]) {
    if (Math.abs(value) < 1000 || unit === "TB") return `${Number(value.toPrecision(3))} ${unit}`;
    value /= 1000;
  }
}

function duration(seconds) {
  if (seconds < 60) return `${Number(seconds.toPrecision(3))} s`;
  if (seconds < 7200) return `${Number((seconds / 60).toPrecision(3))} min`;
  if (seconds < 172800) return `${Number((seconds / 3600).toPrecision(3))} h`;
  return `${Number((seconds / 86400).toPrecision(3))} d`;
}
