// Colours: page.css has them, for screens light and dark and for paper; the chart library wants them by value.

const root = document.documentElement;
const prefersDark = window.matchMedia('(prefers-color-scheme: dark)');
const onPaper = window.matchMedia('print');
export const SERIES_COLOURS = 8;

export function isPrinting() {
  return root.classList.contains('printing');
}

export function currentColours() {
  const style = getComputedStyle(root);
  const colour = (name) => style.getPropertyValue(`--${name}`).trim();
  return {
    paper: colour('paper'), ink: colour('ink'), muted: colour('muted'), grid: colour('line'), bad: colour('bad'),
    series: Array.from({ length: SERIES_COLOURS }, (_, i) => colour(`series-${i}`)),
  };
}

/** Calls `draw` whenever the colours change, and when the page is about to be printed and after it. Browsers differ in
 * which of the two ways they tell of printing. */
export function onChange(draw) {
  const print = (printing) => {
    root.classList.toggle('printing', printing);
    draw();
  };
  prefersDark.addEventListener('change', draw);
  onPaper.addEventListener('change', () => print(onPaper.matches));
  window.addEventListener('beforeprint', () => print(true));
  window.addEventListener('afterprint', () => print(false));
}
