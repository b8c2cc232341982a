// Computations for figures: scales, ticks, smoothing, Pareto fronts, colours. No access to the page.

function extent(values) {
  let low = Infinity, high = -Infinity;
  for (const value of values) {
    if (value === null || !Number.isFinite(value)) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return low <= high ? [low, high] : [0, 1];
}

/** A range with a margin on both sides, so that no mark lies on the frame. */
function padded([low, high], share = 0.05) {
  const room = (high - low || Math.abs(high) || 1) * share;
  return [low - room, high + room];
}

function linearScale([from, to], [start, end]) {
  const span = to - from || 1;
  const map = (value) => start + ((value - from) / span) * (end - start);
  map.ticks = (count) => linearTicks(from, to, count);
  map.invert = (place) => from + ((place - start) / (end - start)) * span;
  map.isLog = false;
  return map;
}

function logScale([from, to], [start, end]) {
  const low = Math.log10(from), span = Math.log10(to) - low || 1;
  const map = (value) => start + ((Math.log10(value) - low) / span) * (end - start);
  map.ticks = (count) => logTicks(from, to, count);
  map.invert = (place) => 10 ** (low + ((place - start) / (end - start)) * span);
  map.isLog = true;
  return map;
}

function linearTicks(from, to, count) {
  const rough = (to - from) / Math.max(count, 1) || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const size = [1, 2, 5, 10].find((factor) => factor * power >= rough) * power;
  const first = Math.ceil(from / size - 1e-9), num = Math.floor(to / size + 1e-9) - first + 1;
  const ticks = Array.from({ length: Math.min(Math.max(num, 0), 100) }, (_, n) => Number(((first + n) * size).toPrecision(12)));
  return [...new Set(ticks)];
}

function logTicks(from, to, count) {
  const first = Math.ceil(Math.log10(from) - 1e-9), last = Math.floor(Math.log10(to) + 1e-9);
  if (last - first < 1) return linearTicks(from, to, count).filter((tick) => tick > 0);
  const every = Math.ceil((last - first + 1) / Math.max(count, 2)), factors = last - first < 3 ? [1, 2, 5] : [1];
  const ticks = [];
  for (let power = first - 1; power <= last; power += every) {
    for (const factor of factors) ticks.push(Number((factor * 10 ** power).toPrecision(12)));
  }
  return ticks.filter((tick) => tick >= from && tick <= to);
}

/** The value at x on the line through the points; null outside of the points and in gaps. */
function interpolate(xs, ys, x) {
  if (!xs.length || x < xs[0] || x > xs[xs.length - 1]) return null;
  let low = 0, high = xs.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (xs[middle] <= x) low = middle; else high = middle;
  }
  const width = xs[high] - xs[low];
  if (xs[low] === x) return ys[low];
  if (xs[high] === x) return ys[high];
  if (ys[low] === null || ys[high] === null) return null;
  return width ? ys[low] + ((ys[high] - ys[low]) * (x - xs[low])) / width : ys[low];
}

/**
 * W&B's time-weighted exponential moving average. The weight of an earlier value decreases with its distance on the x
 * axis, in thousandths of the range. The sum is divided by the weights, so that the start is not biased towards zero.
 */
function smoothed(xs, ys, smoothing, range) {
  if (!smoothing) return ys;
  const weight = Math.min(Math.sqrt(smoothing), 0.999);
  let sum = 0, weights = 0, previous = null;
  return ys.map((y, n) => {
    if (y === null) return null;
    const decay = previous === null ? 1 : weight ** (((xs[n] - previous) / (range || 1)) * 1000);
    previous = xs[n];
    sum = sum * decay + y;
    weights = weights * decay + 1;
    return sum / weights;
  });
}

const DIFFER_VISIBLY = 4, NUM_PLACES = 200;

/**
 * The x from which curves differ visibly: the first one after which all values span at most four times the mean
 * distance between the highest and the lowest curve; if there is none in the first half of the axis, the x there with
 * the smallest such ratio. For a single curve, the start.
 */
function beginning(lines) {
  const longest = lines.reduce((one, other) => (other.x.length > one.x.length ? other : one)).x.filter((at) => at !== null);
  const every = Math.ceil(longest.length / NUM_PLACES), [start, end] = extent(longest);
  let [low, high, distances, count, best] = [Infinity, -Infinity, 0, 0, { at: start, ratio: Infinity }];
  for (const at of longest.filter((_, n) => n % every === 0).reverse()) {
    const values = lines.map(({ x, y }) => interpolate(x, y, at)).filter((value) => value !== null);
    if (!values.length) continue;
    const here = extent(values);
    [low, high, distances, count] = [Math.min(low, here[0]), Math.max(high, here[1]), distances + here[1] - here[0], count + 1];
    const ratio = (high - low) / (distances / count);
    if (at <= (start + end) / 2 && (ratio <= Math.max(best.ratio, DIFFER_VISIBLY))) best = { at, ratio };
  }
  return best.at;
}

/** The Pareto front: points that no other point beats in both x (smaller, or larger) and y. Sorted by x, the best first. */
function paretoFront(points, isMax, isMaxOver = false) {
  const ranked = [...points].sort((a, b) => (isMaxOver ? b.x - a.x : a.x - b.x) || (isMax ? b.y - a.y : a.y - b.y));
  const front = [];
  for (const point of ranked) {
    const last = front[front.length - 1];
    if (!last || (isMax ? point.y > last.y : point.y < last.y)) front.push(point);
  }
  return front;
}

const RAMP = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]]; // viridis

function rampColour(share) {
  const place = Math.min(Math.max(share, 0), 1) * (RAMP.length - 1), low = Math.min(Math.floor(place), RAMP.length - 2);
  const mix = RAMP[low].map((from, n) => Math.round(from + (RAMP[low + 1][n] - from) * (place - low)));
  return `rgb(${mix.join(",")})`;
}

/** Black or white, for the better contrast on a colour of the ramp. */
function inkOn(share) {
  return share > 0.55 ? "#101418" : "#ffffff";
}
