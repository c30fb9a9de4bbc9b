// Points and lines on two axes: what memory buys, the curve whose knee is sought.

const colourOf = i => 'c' + i % 8 + (i >= 8 ? ' again' : '');

function extentOf(values, margin) {
  const low = Math.min(...values), high = Math.max(...values), span = high - low || Math.abs(high) || 1;
  return [low - span * margin, high + span * margin];
}

function pointChart(box, chart) {
  const holder = make('div', {class: 'points'}), joined = chart.series.filter(series => series.joined);
  const all = chart.series.flatMap(series => series.points.filter(point => point[0] !== null && point[1] !== null).map(point =>
    ({x: point[0], y: point[1], spread: point[2] || 0, name: point[3], chosen: point[4], series})));
  if (joined.length > 1)
    box.append(make('p', {class: 'legend'}, ...joined.map((series, i) => make('span', {}, make('i', {class: colourOf(i)}), series.name))));
  box.append(holder);
  const colour = series => series.joined ? colourOf(joined.indexOf(series)) : 'c7';
  const words = point => [point.name, joined.length > 1 && point.series.joined ? point.series.name : ''].filter(Boolean).join(', ') + '\n' +
    chart.y + ' ' + show(point.y) + (point.spread ? ' \u00b1 ' + show(point.spread) : '') + '\n' + chart.x + ' ' + show(point.x);
  const marks = [];

  function paint() {
    const wide = holder.clientWidth;
    if (!wide || !all.length) return;
    const font = parseFloat(getComputedStyle(root).fontSize) * .8, tall = Math.round(Math.min(Math.max(wide * .5, 250), 430));
    const inside = withoutOutliers(all), outside = all.filter(point => !inside.includes(point)).sort((a, b) => b.y - a.y);
    const [x0, x1] = extentOf(all.map(point => point.x), .06), [y0, y1] = extentOf(inside.flatMap(point => [point.y - point.spread, point.y + point.spread]), .07);
    const yTicks = ticks(y0, y1, 6), left = Math.max(...yTicks.map(tick => widthOf(show(tick), font))) + 12, bottom = font * 3.2, top = font * (2.2 + 1.5 * outside.length), right = 10;
    const px = x => left + (x - x0) / (x1 - x0) * (wide - left - right), py = y => tall - bottom - (y - y0) / (y1 - y0) * (tall - bottom - top);
    const svg = draw('svg', {viewBox: '0 0 ' + wide + ' ' + tall, height: tall, role: 'presentation'});
    for (const tick of yTicks)
      svg.append(draw('path', {class: 'grid', d: 'M' + left + ' ' + py(tick) + 'H' + (wide - right)}),
        draw('text', {x: left - 7, y: py(tick) + font * .35, 'text-anchor': 'end'}, show(tick)));
    for (const tick of ticks(x0, x1, Math.max(3, Math.floor(wide / 90))))
      svg.append(draw('path', {class: 'axis', d: 'M' + px(tick) + ' ' + (tall - bottom) + 'v5'}),
        draw('text', {x: px(tick), y: tall - bottom + font * 1.4, 'text-anchor': 'middle'}, show(tick)));
    svg.append(draw('path', {class: 'axis', d: 'M' + left + ' ' + (tall - bottom) + 'H' + (wide - right)}),
      draw('text', {x: wide - right, y: tall - font * .35, 'text-anchor': 'end'}, chart.x + ' \u2192'),
      draw('text', {x: 0, y: font}, '\u2191 ' + chart.y));
    for (const series of joined)
      svg.append(draw('path', {class: 'line ' + colour(series), style: 'fill:none',
        d: 'M' + all.filter(point => point.series === series).map(point => px(point.x) + ' ' + py(point.y)).join('L')}));
    marks.length = 0;
    const heightOut = point => font * (2.2 + 1.5 * outside.indexOf(point));
    const taken = all.map(point => ({x: px(point.x) - 7, y: (outside.includes(point) ? heightOut(point) : py(point.y)) - 7, w: 14, h: 14}));
    for (const point of [...all].sort((a, b) => b.chosen - a.chosen)) {
      const out = outside.includes(point), x = px(point.x), y = out ? heightOut(point) : py(point.y), kind = colour(point.series);
      if (point.spread && !out) svg.append(draw('path', {class: 'whisker ' + kind, d: 'M' + x + ' ' + py(point.y - point.spread) + 'V' + py(point.y + point.spread)}));
      if (point.chosen) svg.append(draw('circle', {class: 'ring', style: 'stroke:var(--accent)', cx: x, cy: y, r: 9}));
      const mark = out ? draw('path', {class: kind, d: 'M' + (x - 6) + ' ' + (y + 5) + 'h12l-6 -10z', 'data-tip': words(point)})
        : draw('circle', {class: kind, cx: x, cy: y, r: 5.5, 'data-tip': words(point)});
      svg.append(mark);
      marks.push([point, mark]);
      if (point.series.joined && joined.length > 1 && !point.chosen) continue;
      const name = out ? point.name + ', ' + show(point.y) : point.name, width = name ? widthOf(name, font, point.chosen ? 620 : 400) : 0, label = labelAt(width, x, y, font, wide, tall - bottom, taken);
      if (label) svg.append(draw('text', {x: label.x, y: label.base, ...(point.chosen ? {class: 'chosen-name'} : {})}, name));
    }
    holder.replaceChildren(svg);
    marks.sort((a, b) => a[0].x - b[0].x || a[0].y - b[0].y);
    stops.length = 0;
    stops.push(...marks.map(mark => mark[1]));
  }
  const stops = [];
  new ResizeObserver(paint).observe(holder);
  paint();
  steps(holder, stops, chart.title || chart.y + ' by ' + chart.x);
  numbersBelow(box, () => ['', chart.x, chart.y, '\u00b1'], () => all.map(point =>
    [point.name || point.series.name, show(point.x), show(point.y), point.spread ? show(point.spread) : '']));
}

// Single points far above the lines would flatten them: they stand at the upper edge, with an arrow and their value.
function withoutOutliers(all) {
  const ys = all.filter(point => point.series.joined).map(point => point.y);
  if (ys.length < 4 || ys.length === all.length) return all;
  const low = Math.min(...ys), high = Math.max(...ys);
  return all.filter(point => point.y <= high + (high - low));
}

// A free place for a point's name beside, above or below it; none where all would overlap.
function labelAt(width, x, y, font, wide, bottom, taken) {
  if (!width) return null;
  const w = width + 5, h = font * 1.15;
  const places = [[x + 11, y - h / 2], [x - 11 - w, y - h / 2], [x - w / 2, y - h - 9], [x - w / 2, y + 9], [x + 8, y - h - 5], [x + 8, y + 5], [x - w - 8, y - h - 5], [x - w - 8, y + 5]];
  for (const [left, up] of places) {
    const hits = taken.some(other => left < other.x + other.w && left + w > other.x && up < other.y + other.h && up + h > other.y);
    if (hits || left < 0 || left + w > wide || up < font * 1.3 || up + h > bottom) continue;
    taken.push({x: left, y: up, w, h});
    return {x: left + 2, base: up + h * .78};
  }
  return null;
}
