// Legends are buttons of the page and not of the chart library: they wrap on a narrow screen, are reached with the
// keyboard, and are printed.
import { createButton, createSvg } from './elements.js';
import { SHAPES } from './marks.js';

// what stands for a series, drawn in a box of 26 × 12 around (0, 0); option.js has the same order of symbols
const SYMBOLS = [SHAPES[1], SHAPES[3], SHAPES[4], SHAPES[2]];

function draw({ series, event, bars, symbols }) {
  if (event)
    return [createSvg('path', { d: SHAPES[event.shape], class: event.tone === 'bad' ? 'bad' : 'mark' })];
  const colour = `series-${series.colour}`;
  if (bars || series.kind === 'area')
    return [createSvg('rect', { x: -6, y: -5, width: 12, height: 10, class: colour })];
  const parts = series.kind === 'scatter' ? [] : [createSvg('line', {
    x1: -12, x2: 12, y1: 0, y2: 0, class: `${colour} line`, ...(series.dashed && { 'stroke-dasharray': '6 4' }),
  })];
  if (symbols)
    parts.push(createSvg('path', { d: SYMBOLS[series.shape % 4], class: colour + (series.shape > 3 ? ' hollow' : '') }));
  return parts;
}

/** entry: {name, series} or {name, event}; with `bars` and `symbols` as the chart draws them. */
export function createLegendButton(entry, act) {
  const width = entry.event || entry.bars ? 14 : 26;
  const swatch = createSvg('svg', { width, height: 12, viewBox: `${-width / 2} -6 ${width} 12`, 'aria-hidden': 'true' },
    ...draw(entry));
  return createButton([swatch, entry.name], act, { 'aria-pressed': 'true' });
}
