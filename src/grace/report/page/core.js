// Small things that every picture uses: elements, numbers, the tip that follows a finger, a mouse or a key.
const $ = (selector, within = document) => within.querySelector(selector);
const $$ = (selector, within = document) => [...within.querySelectorAll(selector)];

// The namespace of pictures, taken from one, so that the page names no address.
const vectorSpace = (() => {
  const template = document.createElement('template');
  template.innerHTML = '<svg></svg>';
  return template.content.firstChild.namespaceURI;
})();

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}
const make = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
const draw = (tag, attributes = {}, ...children) => fill(document.createElementNS(vectorSpace, tag), attributes, children);

// Three digits, thin spaces between thousands, a dash for what is not there.
function show(value) {
  if (value === null || !Number.isFinite(value)) return '\u2013';
  const size = Math.abs(value);
  if (size >= 1e7 || (size > 0 && size < 1e-4)) return value.toExponential(2);
  if (size >= 1000) return Math.round(value).toString().replace(/\B(?=(\d{3})+$)/g, '\u2009').replace('-', '\u2212');
  return String(+value.toPrecision(3)).replace('-', '\u2212');
}

// How wide a text of the page's font is.
const measuring = document.createElement('canvas').getContext('2d');
function widthOf(text, size, weight = 400) {
  measuring.font = weight + ' ' + size + 'px ' + getComputedStyle(document.body).fontFamily;
  return measuring.measureText(text).width;
}

// Round steps, at most `most` of them, from low to high.
function ticks(low, high, most) {
  const span = high - low || 1, power = 10 ** Math.floor(Math.log10(span / most));
  const step = [1, 2, 5, 10].map(factor => factor * power).find(one => span / one <= most) || 10 * power;
  const all = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; ++i) all.push(+(i * step).toPrecision(12));
  return all;
}

const tip = make('div', {id: 'tip', role: 'status', hidden: ''});
document.body.append(tip);
let tipOf = null;
function showTip(text, mark) {
  tip.textContent = text;
  tip.hidden = false;
  tipOf = mark;
  placeTip();
}
// Above its mark, or below where there is no room.
function placeTip() {
  const box = tipOf.getBoundingClientRect(), own = tip.getBoundingClientRect(), gap = 10, wide = document.documentElement.clientWidth;
  const left = Math.min(Math.max(gap, (box.left + box.right) / 2 - own.width / 2), wide - own.width - gap);
  const top = box.top - own.height - gap >= 0 ? box.top - own.height - gap : box.bottom + gap;
  tip.style.transform = 'translate(' + Math.round(left) + 'px,' + Math.round(top) + 'px)';
}
const hideTip = () => { tip.hidden = true; };
const hideTipOf = mark => { if (tipOf === mark) hideTip(); };
addEventListener('keydown', event => { if (event.key === 'Escape') hideTip(); });
// Where the page moves a key's tip moves along; a mouse's is over.
addEventListener('scroll', () => {
  if (tip.hidden) return;
  const active = document.activeElement;
  if (active !== document.body && active.contains(tipOf)) placeTip();
  else hideTip();
}, {passive: true, capture: true});

// What has data-tip says it under a mouse, a finger or, through steps(), the arrow keys. What a key asked for stays until the mouse is moved: the
// page that moves beneath a mouse at rest takes nothing away.
let byKey = false;
function sayUnder(event) {
  const said = event.target.closest && event.target.closest('[data-tip]');
  if (said) showTip(said.dataset.tip, said);
  else if (!event.target.closest || !event.target.closest('.map')) hideTip();
}
addEventListener('keydown', () => { byKey = true; });
document.addEventListener('pointerover', event => { if (!byKey) sayUnder(event); });
document.addEventListener('pointerdown', event => {
  byKey = false;
  sayUnder(event);
});
document.addEventListener('pointermove', event => {
  if (!byKey || (!event.movementX && !event.movementY)) return;
  byKey = false;
  sayUnder(event);
});

// One stop of the tab key for many marks: arrows, Home and End go from one to the next.
function steps(box, marks, name) {
  if (!marks.length) return;
  let at = -1;
  box.tabIndex = 0;
  box.setAttribute('role', 'group');
  box.setAttribute('aria-label', name + ', ' + marks.length + ' values; arrow keys go from one to the next');
  const go = to => {
    if (at >= 0) marks[at].classList.remove('now');
    at = to;
    if (at < 0) return hideTip();
    marks[at].classList.add('now');
    showTip(marks[at].dataset.tip, marks[at]);
  };
  box.addEventListener('keydown', event => {
    const to = {ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: marks.length - 1}[event.key];
    if (to === undefined) return;
    event.preventDefault();
    go(Math.min(Math.max(to, 0), marks.length - 1));
  });
  box.addEventListener('focus', () => {
    if (!box.matches(':focus-visible')) return;
    byKey = true;
    go(Math.max(at, 0));
  });
  box.addEventListener('blur', () => go(-1));
}

// The numbers of a picture as a table, made when it is opened.
function numbersBelow(box, columns, rows) {
  const details = make('details', {}, make('summary', {}, 'Numbers'));
  details.addEventListener('toggle', () => {
    if (!details.open) return;
    $$('.wide', details).forEach(old => old.remove());
    const head = make('tr', {}, ...columns().map(name => make('th', {scope: 'col'}, name)));
    const body = rows().map(row => make('tr', {}, ...row.map((cell, i) => make(i ? 'td' : 'th', i ? {} : {scope: 'row'}, cell))));
    details.append(make('div', {class: 'wide', tabindex: 0, role: 'region', 'aria-label': 'Numbers'},
      make('table', {}, make('thead', {}, head), make('tbody', {}, ...body))));
  });
  box.append(details);
  return details;
}

// Light or dark, as the system says until the reader says otherwise.
const root = document.documentElement, systemDark = matchMedia('(prefers-color-scheme: dark)');
let printing = false;
const isDark = () => root.dataset.theme ? root.dataset.theme === 'dark' : systemDark.matches;
const afterTheme = [];
const themeChanged = () => afterTheme.forEach(call => call());

// The layer that all layered pictures show.
let layerNow = 0;
const afterLayer = [];
const layerNames = $$('#layer-names option').map(option => option.textContent);
function setLayer(to) {
  const last = layerNames.length - 1, next = Math.min(Math.max(to, 0), last);
  if (last < 0) return;
  layerNow = next;
  const slider = $('#layer');
  if (slider) {
    slider.value = next;
    slider.setAttribute('aria-valuetext', 'layer ' + layerNames[next]);
    $('#layers output').textContent = layerNames[next];
  }
  afterLayer.forEach(call => call());
}
