// Tables sort by a click on a head, and say when they are wider than their box.

// The number that a cell begins with; what has none stays last either way.
function numberOf(cell) {
  const text = cell.textContent.replace(/[\u2009\u00a0 ](?=\d)/g, '').replace('\u2212', '-').replace(/^@/, '');
  const match = /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?/i.exec(text.trim());
  return match ? parseFloat(match[0]) : NaN;
}

function sortBy(table, column, head) {
  const body = table.tBodies[0], rows = [...body.rows];
  const numbers = rows.map(row => numberOf(row.cells[column])), isNumbers = column > 0 && numbers.some(Number.isFinite);
  const up = head.getAttribute('aria-sort') !== 'ascending';
  const order = rows.map((_, i) => i).sort((a, b) => {
    if (!isNumbers) {
      const by = rows[a].cells[column].textContent.localeCompare(rows[b].cells[column].textContent, 'en', {numeric: true});
      return (up ? by : -by) || a - b;
    }
    if (Number.isNaN(numbers[a]) || Number.isNaN(numbers[b])) return Number.isNaN(numbers[a]) - Number.isNaN(numbers[b]) || a - b;
    return (up ? numbers[a] - numbers[b] : numbers[b] - numbers[a]) || a - b;
  });
  $$('thead th', table).forEach(th => th.setAttribute('aria-sort', 'none'));
  head.setAttribute('aria-sort', up ? 'ascending' : 'descending');
  body.append(...order.map(i => rows[i]));
}

for (const table of $$('table.sortable'))
  $$('thead th', table).forEach((head, column) => {
    head.setAttribute('aria-sort', 'none');
    $('button', head).addEventListener('click', () => sortBy(table, column, head));
  });

// Of a long table that sorts the first rows, as it is sorted, until all are asked for.
const shownRows = 12;
for (const table of $$('table.sortable')) {
  const count = table.tBodies[0].rows.length;
  if (count <= shownRows + 4) continue;
  table.classList.add('folded');
  const button = make('button', {type: 'button', class: 'more', 'aria-expanded': 'false'}, 'Show all ' + count + ' rows');
  button.addEventListener('click', () => {
    const folded = table.classList.toggle('folded');
    button.textContent = folded ? 'Show all ' + count + ' rows' : 'Show fewer rows';
    button.setAttribute('aria-expanded', String(!folded));
  });
  table.parentElement.after(button);
}

function hintAtWidth(box) {
  const wider = box.scrollWidth > box.clientWidth + 1;
  box.classList.toggle('wider', wider);
  let hint = box.nextElementSibling && box.nextElementSibling.classList.contains('hint') ? box.nextElementSibling : null;
  if (wider && !hint) box.after(hint = make('p', {class: 'hint'}, 'Goes on to the right: scroll sideways.'));
  if (hint) hint.hidden = !wider;
  if (wider) {
    box.tabIndex = 0;
    box.setAttribute('role', 'region');
    box.setAttribute('aria-label', 'Table, scrolls sideways');
  } else {
    box.removeAttribute('tabindex');
  }
}
const widthWatch = new ResizeObserver(entries => entries.forEach(entry => hintAtWidth(entry.target)));
$$('main .wide').forEach(box => widthWatch.observe(box));
