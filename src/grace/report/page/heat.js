// Heat maps on canvas: panels side by side, a cell that follows mouse, finger or arrow keys.

function heatMap(box, map) {
  if (!map.panels.length) map.panels = [''];
  const labels = {row: i => map.rl.length ? map.rl[i] : String(i), col: i => map.cl.length ? map.cl[i] : String(i)};
  const frame = make('div', {class: map.panels.length > 1 ? 'panels' : 'panels one'}), scaleBox = make('div', {class: 'scale'});
  let summed = false, panels = [], scale = null, oneScale = null;
  const views = map.panels.map(name => heatView(frame, name, map, labels, at => words(at)));

  function words({view, row, col}) {
    const panel = panels[view], from = panel.order.length ? panel.order : null;
    const value = panel.values[row * map.cols + col], exact = map.layers.every(layer => layer.panels.every(one => !one.b));
    const said = map.scale === 'categories' ? map.categories[value] : (exact ? '' : 'about ') + show(value) + map.unit;
    return map.row + ' ' + labels.row(from ? from[row] : row) + ', ' + map.col + ' ' + labels.col(from ? from[col] : col) + ': ' + said;
  }
  function choose() {
    panels = panelsAt(map, summed ? null : layerNow);
    if (!summed && map.summable && !oneScale) oneScale = scaleOf(map, map.layers.flatMap(layer => panelsOf(map, layer)));
    scale = !summed && oneScale || scaleOf(map, panels);
  }
  function paint() {
    if (!panels.length) choose();
    const colours = table256(ramps[map.scale][isDark() ? 1 : 0]);
    views.forEach((view, i) => view.paint(panels[i], scale, colours));
    legend(scaleBox, map, scale, colours);
  }

  if (map.summable && map.layers.length > 1) {
    const one = make('button', {type: 'button', 'aria-pressed': 'true'}, 'One layer');
    const all = make('button', {type: 'button', 'aria-pressed': 'false'}, 'All layers');
    for (const button of [one, all])
      button.addEventListener('click', () => {
        summed = button === all;
        one.setAttribute('aria-pressed', String(!summed));
        all.setAttribute('aria-pressed', String(summed));
        choose();
        paint();
      });
    box.append(make('div', {class: 'choice', role: 'group', 'aria-label': 'Layers shown'}, one, all));
  }
  box.append(frame, scaleBox);
  if (map.rows * map.cols <= 4096)
    numbersBelow(box, () => ['', ...Array.from({length: map.cols}, (_, c) => labels.col(c))],
      () => panels.flatMap((panel, p) => Array.from({length: map.rows}, (_, r) => [
        (map.panels[p] ? map.panels[p] + ', ' : '') + labels.row(panel.order.length ? panel.order[r] : r),
        ...Array.from({length: map.cols}, (_, c) => {
          const value = panel.values[r * map.cols + c];
          return map.scale === 'categories' ? map.categories[value] : show(value);
        })])));
  afterTheme.push(paint);
  afterLayer.push(() => {
    const before = panels;
    if (!summed && map.layers.length > 1) choose();
    if (map.rowsAreLayers || before !== panels) paint();
  });
  new ResizeObserver(paint).observe(frame);
}

function legend(box, map, scale, colours) {
  const css = i => 'rgb(' + colours[Math.min(Math.max(i, 0), 255)] + ')';
  if (map.scale === 'categories') {
    box.replaceChildren(...map.categories.map((name, i) => {
      const mark = make('i');
      mark.style.background = css(scale.place(i));
      return make('span', {class: 'swatch'}, mark, name);
    }));
    return;
  }
  const ramp = make('i'), [low, high] = [scale.marks[0], scale.marks[scale.marks.length - 1]], marks = make('span');
  const stretch = map.scale === 'root' ? Math.sqrt : value => value;
  for (const mark of scale.marks) {
    const at = high > low ? (stretch(mark) - stretch(low)) / (stretch(high) - stretch(low)) : 0;
    if (scale.marks.length === 3 && at > 0 && at < 1 && (at < .3 || at > .7)) continue;  // no room beside an end
    const name = make('span', {}, show(mark) + map.unit);
    name.style.left = at * 100 + '%';
    name.style.transform = 'translateX(' + -at * 100 + '%)';
    marks.append(name);
  }
  const steps = Array.from({length: 17}, (_, i) => map.scale === 'root' ? css(i * 16) : css(scale.place(low + (high - low) * i / 16)));
  ramp.style.background = 'linear-gradient(90deg,' + steps.join() + ')';
  box.replaceChildren(make('div', {class: 'ramp'}, ramp, marks), make('span', {}, map.value || ''));
}

// One panel: canvas, the cell that is looked at, and how to get there.
function heatView(frame, name, map, labels, words) {
  const canvas = make('canvas', {'aria-hidden': 'true'}), cell = make('div', {class: 'cell', hidden: ''});
  const what = (map.title ? map.title + ', ' : '') + (name ? name + ': ' : '') + map.rows + ' by ' + map.cols + ' values, ' + map.row + ' down, ' + map.col + ' across; arrow keys read them';
  const holder = make('div', {class: 'map', tabindex: 0, role: 'application', 'aria-roledescription': 'heat map', 'aria-label': what}, canvas, cell);
  const index = frame.children.length;
  const panel = make('div', {class: 'panel'}, ...(name ? [make('h4', {}, name)] : []), holder);
  frame.append(panel);
  let shape = null, at = null;

  function look(row, col) {
    at = {view: index, row, col};
    cell.hidden = false;
    cell.style.left = shape.left + col * shape.wide + 'px';
    cell.style.top = shape.top + row * shape.tall + 'px';
    cell.style.width = shape.wide + 'px';
    cell.style.height = shape.tall + 'px';
    showTip(words(at), cell);
  }
  function away() {
    cell.hidden = true;
    hideTipOf(cell);
  }
  function point(event) {
    const own = canvas.getBoundingClientRect();
    const col = Math.floor((event.clientX - own.left - shape.left) / shape.wide), row = Math.floor((event.clientY - own.top - shape.top) / shape.tall);
    if (row < 0 || col < 0 || row >= map.rows || col >= map.cols) return away();
    look(row, col);
  }
  holder.addEventListener('pointermove', point);
  holder.addEventListener('pointerdown', point);
  holder.addEventListener('pointerleave', event => { if (event.pointerType === 'mouse') away(); });
  holder.addEventListener('click', event => {
    point(event);
    if (map.rowsAreLayers && at) setLayer(at.row);
  });
  holder.addEventListener('focus', () => { if (holder.matches(':focus-visible')) at ? look(at.row, at.col) : look(0, 0); });
  holder.addEventListener('blur', away);
  holder.addEventListener('keydown', event => {
    const from = at || {row: 0, col: 0};
    const to = {ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1]}[event.key];
    if (event.key === 'Enter' && map.rowsAreLayers) return setLayer(from.row);
    if (event.key === 'Home') look(from.row, 0);
    else if (event.key === 'End') look(from.row, map.cols - 1);
    else if (to) look(Math.min(Math.max(from.row + to[0], 0), map.rows - 1), Math.min(Math.max(from.col + to[1], 0), map.cols - 1));
    else return;
    event.preventDefault();
  });

  function paint(data, scale, colours) {
    const wide = holder.clientWidth, ratio = Math.min(devicePixelRatio || 1, 3);
    if (!wide) return;
    const context = canvas.getContext('2d'), font = Math.round(parseFloat(getComputedStyle(root).fontSize) * .72);
    context.font = font + 'px system-ui, sans-serif';
    shape = shapeOf(map, labels, data, wide, font, text => context.measureText(text).width);
    canvas.width = Math.round(wide * ratio);
    canvas.height = Math.round(shape.height * ratio);
    canvas.style.height = shape.height + 'px';
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.font = font + 'px system-ui, sans-serif';
    paintCells(context, map, data, shape, scale, colours, ratio);
    paintBorders(context, map, data, shape);
    paintNames(context, map, labels, data, shape, font);
  }
  return {paint};
}

// Where the cells lie: square ones for square matrices, rows of an even height for others.
function shapeOf(map, labels, data, wide, font, measure) {
  let left = 0;
  for (let r = 0; r < map.rows; ++r) left = Math.max(left, measure(labels.row(data.order.length ? data.order[r] : r)));
  left = Math.ceil(Math.min(left + 8, wide * .34));
  const top = Math.round(font * 1.5), square = map.rows === map.cols;
  const across = square ? Math.min(wide - left - 2, 620) : wide - left - 2, cellWide = across / map.cols;
  const tall = square ? (map.rows < 12 ? Math.min(cellWide, 44) : cellWide) : Math.min(Math.max(300 / map.rows, map.rows > 40 ? 8 : 12), 26);
  return {left, top, wide: cellWide, tall, across, height: Math.ceil(top + tall * map.rows + font * 1.9)};
}

function paintCells(context, map, data, shape, scale, colours, ratio) {
  const {left, top, wide, tall} = shape, colourAt = value => colours[Math.min(Math.max(scale.place(value), 0), 255)];
  if (wide * ratio < 4 || tall * ratio < 4) {
    const small = new OffscreenCanvas(map.cols, map.rows), into = small.getContext('2d'), image = into.createImageData(map.cols, map.rows);
    data.values.forEach((value, i) => { if (value === value) image.data.set([...colourAt(value), 255], i * 4); });
    into.putImageData(image, 0, 0);
    context.imageSmoothingEnabled = wide * ratio < 1;
    context.drawImage(small, left, top, wide * map.cols, tall * map.rows);
    return;
  }
  const gap = Math.min(wide, tall) > 7 ? 1 : 0, size = Math.min(parseFloat(context.font), tall - 3);
  // Numbers in all cells or in none.
  const said = value => show(value) + map.unit;
  const fits = map.scale !== 'categories' && wide >= 26 && tall >= 13 && size >= 9 &&
    data.values.every(value => value !== value || context.measureText(said(value)).width <= wide - 4);
  context.textAlign = 'center';
  context.textBaseline = 'middle';
  data.values.forEach((value, i) => {
    if (value !== value) return;
    const x = left + i % map.cols * wide, y = top + Math.floor(i / map.cols) * tall, [r, g, b] = colourAt(value);
    context.fillStyle = 'rgb(' + r + ',' + g + ',' + b + ')';
    context.fillRect(x, y, wide - gap, tall - gap);
    if (!fits) return;
    context.fillStyle = r * .3 + g * .59 + b * .11 > 140 ? '#12161c' : '#f6f8fb';
    context.fillText(said(value), x + (wide - gap) / 2, y + tall / 2 + .5);
  });
}

// Colours of the page as a canvas takes them.
function pageColour(name) {
  const probe = make('span');
  probe.style.color = 'var(' + name + ')';
  document.body.append(probe);
  const colour = getComputedStyle(probe).color;
  probe.remove();
  return colour;
}

function paintBorders(context, map, data, shape) {
  const {left, top, wide, tall} = shape;
  context.strokeStyle = pageColour(map.scale === 'diverging' ? '--ink' : '--mark');
  const faint = (borders, size) => borders.length > 1 && map.rows * size / borders.length < 12;
  const line = (strong, x0, y0, x1, y1) => {
    context.lineWidth = strong ? 1.8 : .7;
    context.beginPath();
    context.moveTo(x0, y0);
    context.lineTo(x1, y1);
    context.stroke();
  };
  for (const border of data.rowBorders) if (border < 0 || !faint(data.rowBorders, tall)) line(border < 0, left, top + Math.abs(border) * tall - .5, left + map.cols * wide, top + Math.abs(border) * tall - .5);
  for (const border of data.colBorders) if (border < 0 || !faint(data.colBorders, wide)) line(border < 0, left + Math.abs(border) * wide - .5, top, left + Math.abs(border) * wide - .5, top + map.rows * tall);
  if (map.rowsAreLayers && !printing && map.rows > 1) {
    context.strokeStyle = pageColour('--ink');
    context.lineWidth = 1.5;
    context.strokeRect(left - 1, top + layerNow * tall - 1, map.cols * wide + 1, tall + 1);
  }
}

// As many labels as fit, and what the axes are.
function paintNames(context, map, labels, data, shape, font) {
  const {left, top, wide, tall} = shape, from = data.order.length ? data.order : null, below = top + map.rows * tall;
  context.fillStyle = pageColour('--dim');
  context.textBaseline = 'middle';
  context.textAlign = 'right';
  const every = Math.ceil((font * 1.15) / tall);
  for (let r = 0; r < map.rows; r += every) context.fillText(labels.row(from ? from[r] : r), left - 5, top + (r + .5) * tall, left - 6);
  let widest = 0;
  for (let c = 0; c < map.cols; ++c) widest = Math.max(widest, context.measureText(labels.col(from ? from[c] : c)).width);
  context.textAlign = 'center';
  const step = Math.ceil((widest + 6) / wide);
  let after = 0;
  for (let c = 0; c < map.cols; c += step) {
    const text = labels.col(from ? from[c] : c), half = context.measureText(text).width / 2;
    const middle = Math.min(left + (c + .5) * wide, left + map.cols * wide - half);
    if (middle - half < after) continue;
    after = middle + half + 4;
    context.fillText(text, middle, below + font * .85);
  }
  context.textAlign = 'left';
  context.fillText(map.row + ' \u2193   ' + map.col + ' \u2192', left, top - font * .75);
}
