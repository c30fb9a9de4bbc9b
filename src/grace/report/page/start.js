// Joins everything: pictures are drawn when they come into view, or all of them for paper.

const kinds = {heat: heatMap, points: pointChart};
function drawNow(box) {
  if (box.classList.contains('done')) return;
  box.classList.add('done');
  kinds[box.dataset.kind](box, JSON.parse($('#' + box.dataset.from).textContent));
}
const sight = new IntersectionObserver(entries => {
  for (const entry of entries)
    if (entry.isIntersecting) {
      sight.unobserve(entry.target);
      drawNow(entry.target);
    }
}, {rootMargin: '600px'});
$$('.drawn').forEach(box => sight.observe(box));

for (const box of $$('[data-steps]')) {
  const title = $('h3', box.parentElement) || $('h2', box.closest('section'));
  steps(box, $$(box.dataset.steps, box).filter(mark => mark.dataset.tip), title ? title.textContent : 'Values');
}

const slider = $('#layer');
if (slider) {
  setLayer(0);
  slider.addEventListener('input', () => setLayer(+slider.value));
  $$('#layers button').forEach(button => button.addEventListener('click', () => setLayer(layerNow + +button.dataset.by)));
  $('#layers').addEventListener('submit', event => event.preventDefault());
}

const theme = $('#theme');
const nameTheme = () => {
  theme.textContent = isDark() ? 'Light' : 'Dark';
  theme.setAttribute('aria-label', isDark() ? 'Use the light theme' : 'Use the dark theme');
};
theme.hidden = false;
nameTheme();
theme.addEventListener('click', () => {
  root.dataset.theme = isDark() ? 'light' : 'dark';
  nameTheme();
  themeChanged();
});
systemDark.addEventListener('change', () => { nameTheme(); themeChanged(); });
// Paper is light.
let themeBefore;
addEventListener('beforeprint', () => {
  printing = true;
  themeBefore = root.dataset.theme;
  root.dataset.theme = 'light';
  $$('.drawn').forEach(drawNow);
  themeChanged();
});
addEventListener('afterprint', () => {
  printing = false;
  if (themeBefore) root.dataset.theme = themeBefore;
  else delete root.dataset.theme;
  themeChanged();
});
