// The values and colours of heat maps.

const ramps = {
  sequential: [['#f4f1ea', '#c6dbea', '#84b3d8', '#3d7db7', '#134a86', '#08264d'], ['#1d2128', '#1d3f63', '#2a6aa6', '#5c9cd8', '#a6cef3', '#f0f7ff']],
  diverging: [['#1a5a9e', '#8fb7dc', '#f4f1ea', '#e9b07a', '#a84f0c'], ['#79b8f4', '#34608f', '#22262d', '#96602a', '#f5a653']],
  categories: [['#efece4', '#86b4d8', '#134a86'], ['#22262d', '#3f78b3', '#cbe3fb']],
};
ramps.root = ramps.sequential;
const parts = colour => [1, 3, 5].map(at => parseInt(colour.slice(at, at + 2), 16));

// 256 colours from one end of a ramp to the other.
function table256(stops) {
  const all = [];
  for (let i = 0; i < 256; ++i) {
    const place = i / 255 * (stops.length - 1), at = Math.min(Math.floor(place), stops.length - 2);
    const from = parts(stops[at]), to = parts(stops[at + 1]);
    all.push(from.map((part, c) => Math.round(part + (to[c] - part) * (place - at))));
  }
  return all;
}

// One panel's values by row and column as they are shown: order applied, halves mirrored, bytes read.
function valuesOf(map, panel, base) {
  if (!base.read) base.read = readValues(map, base);
  const count = map.cols, order = panel.o;
  const place = map.symmetric
    ? (r, c) => { const a = Math.min(r, c), b = Math.max(r, c); return a * count - a * (a - 1) / 2 + b - a; }
    : (r, c) => r * count + c;
  const all = new Float64Array(map.rows * count);
  for (let r = 0; r < map.rows; ++r)
    for (let c = 0; c < count; ++c)
      all[r * count + c] = base.read[order.length ? place(order[r], order[c]) : place(r, c)];
  return all;
}

function readValues(map, base) {
  if (base.v) return Float64Array.from(base.v, value => value === null ? NaN : value);
  const bytes = atob(base.b), all = new Float64Array(bytes.length);
  for (let i = 0; i < bytes.length; ++i) {
    const step = bytes.charCodeAt(i), value = base.m * (step / 254) ** 2;
    all[i] = step === 255 ? NaN : base.w ? Math.round(value) : value;
  }
  return all;
}

// The panels that are shown for a layer, the nearest that is there; null: the sum of all layers.
function panelsAt(map, layer) {
  if (layer === null) {
    const sums = map.panels.map((_, p) => new Float64Array(map.rows * map.cols));
    for (const one of map.layers) panelsOf(map, one).forEach((panel, p) => panel.values.forEach((value, i) => { sums[p][i] += value; }));
    return panelsOf(map, map.layers[0]).map((panel, p) => ({...panel, values: sums[p]}));
  }
  const near = map.layers.reduce((best, one) => Math.abs(one.at - layer) < Math.abs(best.at - layer) ? one : best);
  return panelsOf(map, near);
}

function panelsOf(map, layer) {
  let base = null;
  return layer.panels.map(panel => {
    if (panel.v || panel.b) base = panel;
    return {order: panel.o, rowBorders: panel.rb, colBorders: panel.cb, values: valuesOf(map, panel, base)};
  });
}

// From a value to 0..255 of the ramp, and what the legend says at its ends and between.
function scaleOf(map, panels) {
  if (map.scale === 'categories') {
    const last = map.categories.length - 1 || 1;
    return {place: value => Math.round(value / last * 255), marks: []};
  }
  let low = Infinity, high = -Infinity;
  for (const panel of panels)
    for (const value of panel.values)
      if (value === value) { low = Math.min(low, value); high = Math.max(high, value); }
  if (map.scale === 'diverging') {
    const reach = Math.max(Math.abs(low - map.middle), Math.abs(high - map.middle)) || 1;
    const span = Number.isFinite(reach) ? reach : 1;
    const ends = Number.isFinite(low) ? [Math.min(low, map.middle), map.middle, Math.max(high, map.middle)] : [map.middle];
    return {place: value => Math.round((value - map.middle + span) / (2 * span) * 255), marks: [...new Set(ends)]};
  }
  const most = high > 0 ? high : 1, quarters = [0, .25, .5, .75, 1];
  if (map.scale === 'root')
    return {place: value => Math.round(Math.sqrt(Math.max(value, 0) / most) * 255), marks: quarters.map(part => most * part * part)};
  return {place: value => Math.round(value / most * 255), marks: quarters.map(part => most * part)};
}
