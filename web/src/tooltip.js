// What is shown of the place under the pointer: every series' value there, and the events.
import { create } from './elements.js';
import { full } from './format.js';
import { isBars } from './option.js';
import { pointAt } from './points.js';

const NEAR_PIXELS = 6; // what is as near as this is under the pointer
const EVENTS_MOST = 6;

function describeValue(value, band) {
  if (value === null || value === undefined)
    return '–';
  return band && band[1] < band[2] ? `${full(value)} (${full(band[1])} to ${full(band[2])})` : full(value);
}

function row(colour, name, text) {
  const key = create('span', { class: 'key' });
  key.style.background = colour;
  return create('tr', {}, create('th', { scope: 'row' }, key, name), create('td', {}, text));
}

function barRows(chart, view, index) {
  return chart.series.filter((series) => !view.hidden.has(series.name)).map((series) => {
    const at = (points) => points?.find((point) => point[0] === index);
    return row(view.theme.series[series.colour], series.name, describeValue(at(series.points)?.[1], at(series.band)));
  });
}

function lineRows(chart, view, x, isNear) {
  return chart.series.filter((series) => !view.hidden.has(series.name) && series.points.length).flatMap((series) => {
    const stepped = series.kind === 'step';
    const point = pointAt(series.points, x, stepped);
    const ended = stepped && point === series.points.at(-1);
    if (!point || !(isNear(point[0]) || (stepped && !ended)))
      return [];
    const band = series.band?.find((entry) => entry[0] === point[0]);
    const values = series.points.filter((each) => each[0] === point[0]); // a scatter may have several
    return [row(view.theme.series[series.colour], series.name, values.map((each) => describeValue(each[1], band)).join('; '))];
  });
}

/** What happened there; of too much only how often. */
function eventLines(chart, view, isNear) {
  const near = chart.events.filter((event) => !view.hidden.has(event.name))
    .map((event) => ({ name: event.name, marks: event.marks.filter((mark) => isNear(mark.x)) }))
    .filter((event) => event.marks.length);
  const line = (name, text) => create('p', {}, create('b', {}, name), text ? ` ${text}` : '');
  return near.reduce((sum, event) => sum + event.marks.length, 0) > EVENTS_MOST
    ? near.map((event) => line(event.name, `× ${event.marks.length}`))
    : near.flatMap((event) => event.marks.map((mark) => line(event.name, mark.text)));
}

/** The option of the chart library. toPixel: from x to where it lies. */
export function tooltipOption(chart, view, toPixel) {
  const { theme } = view;
  return {
    trigger: 'axis', confine: true, transitionDuration: 0, className: 'tooltip',
    backgroundColor: theme.paper, borderColor: theme.muted, borderWidth: 1, padding: [6, 10],
    textStyle: { color: theme.ink, fontSize: 13, fontFamily: 'system-ui, sans-serif' },
    axisPointer: { type: isBars(chart) ? 'shadow' : 'line', snap: true, lineStyle: { color: theme.muted, type: 'solid' } },
    formatter: ([first]) => {
      if (isBars(chart)) {
        return create('div', {}, create('p', {}, create('b', {}, chart.categories[first.dataIndex] ?? '')),
          create('table', {}, ...barRows(chart, view, first.dataIndex)));
      }
      const x = first.axisValue;
      const isNear = (other) => Math.abs(toPixel(other) - toPixel(x)) <= NEAR_PIXELS;
      return create('div', {}, create('p', {}, `${chart.x.name} `, create('b', {}, full(x))),
        create('table', {}, ...lineRows(chart, view, x, isNear)), ...eventLines(chart, view, isNear));
    },
  };
}
