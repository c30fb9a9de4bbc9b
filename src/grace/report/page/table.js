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

function hintAtWidth(box) {
  const wider = box.scrollWidth > box.clientWidth + 1;
  let hint = box.nextElementSibling && box.nextElementSibling.classList.contains('hint') ? box.nextElementSibling : null;
  if (wider && !hint) box.after(hint = make('p', {class: 'hint'}, 'The table goes on to the right: scroll it sideways.'));
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
