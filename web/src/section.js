// A section of the report: heading, paragraphs, charts with their legend and controls, table.
//
// Its charts share the zoom of the x axis, the names that are hidden, and the measure that x is shown in: a section may
// have "other_x" {"name", "points": [[x, other], …]}, as of steps to seconds.
import { Plot } from './plot.js';
import { create, createButton } from './elements.js';
import { createLegendButton } from './legend.js';
import { isBars, isDense } from './option.js';
import { interpolation } from './points.js';
import { createTable } from './table.js';
import { SHAPES } from './marks.js';
import { SERIES_COLOURS } from './theme.js';

/** Names of series get the same colour in all charts of a section; a series that is alone in its chart the first. */
function colourNames(charts) {
  const names = charts.filter((chart) => chart.series.length > 1).flatMap((chart) => chart.series.map((series) => series.name));
  const unique = [...new Set(names)];
  return (name) => Math.max(0, unique.indexOf(name)) % SERIES_COLOURS;
}

function groupEvents(charts) {
  const names = [...new Set(charts.flatMap((chart) => chart.events).map((event) => event.name))];
  return (chart, place) => names.flatMap((name, i) => {
    const events = chart.events.filter((event) => event.name === name);
    return events.length ? [{
      name, tone: events[0].tone, shape: i % SHAPES.length,
      marks: events.map((event) => ({ x: place(event.x, event.other_x), text: event.text ?? '' })),
    }] : [];
  });
}

/** The charts as option.js wants them, with x in the measure that `place` turns it into. */
function prepare(charts, xName, place) {
  const colourOf = colourNames(charts);
  const eventsOf = groupEvents(charts);
  return charts.map((chart) => ({
    ...chart,
    kind: chart.kind ?? 'line',
    x: { ...chart.x, ...(xName && { name: xName }) },
    y: chart.y ?? {},
    series: chart.series.map((series) => ({
      ...series,
      kind: series.kind ?? chart.kind ?? 'line',
      points: series.points.map(([x, y]) => [place(x), y]),
      band: series.band?.map(([x, low, high]) => [place(x), low, high]),
      colour: colourOf(series.name), shape: colourOf(series.name),
    })),
    events: eventsOf(chart, place),
  }));
}

/** Every x that a chart has a point at. */
function placesOf(charts) {
  const xs = charts.filter((chart) => !isBars(chart)).flatMap((chart) => chart.series)
    .flatMap((series) => series.points.map((point) => point[0]));
  return [...new Set(xs)].sort((a, b) => a - b);
}

function rangeOf(charts) {
  let least = Infinity, most = -Infinity;
  for (const chart of charts.filter((each) => !isBars(each)))
    for (const [x] of [...chart.series.flatMap((series) => series.points),
      ...chart.events.flatMap((event) => event.marks.map((mark) => [mark.x]))]) {
      least = Math.min(least, x);
      most = Math.max(most, x);
    }
  if (least > most)
    return [0, 1]; // there are no points
  return least < most ? [least, most] : [least, least + 1];
}

export class Section {
  /** description: of the section; id: of its element. */
  constructor(description, id) {
    this.description = description;
    const given = description.charts ?? (description.chart ? [description.chart] : []);
    this.given = given.map((chart) => ({ ...chart, events: chart.kind === 'bar' ? [] : chart.events ?? description.events ?? [] }));
    this.hidden = new Set();
    this.other = false; // whether x is shown in its other measure
    this.element = create('section', { id, 'aria-labelledby': `${id}-heading` },
      create('h2', { id: `${id}-heading` }, description.heading ?? ''),
      ...(description.text ?? []).map((paragraph) => create('p', {}, paragraph)));
    if (this.given.length)
      this.addCharts(id);
    if (description.table)
      this.element.append(createTable(description.table, description.heading ?? 'table'));
  }

  addCharts(id) {
    this.measure();
    this.zoomable = this.charts.some(isDense);
    this.legendButtons = [];
    this.controls = create('div', { class: 'controls' });
    this.element.append(this.controls);
    this.addControls();
    this.plots = this.charts.map((chart, i) => new Plot(this, i));
    this.element.append(...this.plots.map((plot) => plot.figure));
  }

  /** Sets this.charts, this.range and this.places for the measure of x that is chosen. */
  measure() {
    const other = this.other && this.description.other_x;
    const convert = other && interpolation(other.points);
    const place = other ? (x, otherX) => otherX ?? convert(x) : (x) => x;
    this.charts = prepare(this.given, other && other.name, place);
    this.range = rangeOf(this.charts);
    this.places = placesOf(this.charts);
  }

  addControls() {
    const { other_x: other } = this.description;
    if (other) {
      const choices = [[false, this.given[0].x.name], [true, other.name]].map(([value, name]) => {
        const button = createButton(name, () => this.setOther(value), { 'aria-pressed': String(value === this.other) });
        return { value, button };
      });
      this.choices = choices;
      this.controls.append(create('div', { class: 'choice', role: 'group', 'aria-label': 'Horizontal axis' },
        ...choices.map((choice) => choice.button)));
    }
    const events = new Map(this.charts.flatMap((chart) => chart.events).map((event) => [event.name, event]));
    if (events.size)
      this.controls.append(create('div', { class: 'legend', role: 'group', 'aria-label': 'Events' },
        ...[...events.values()].map((event) => this.createToggle({ event, name: event.name }))));
  }

  /** A button that shows or hides what has that name, in all charts. */
  createToggle(entry) {
    const button = createLegendButton(entry, () => {
      if (!this.hidden.delete(entry.name))
        this.hidden.add(entry.name);
      this.updateToggles();
      this.draw();
    });
    this.legendButtons.push({ name: entry.name, button });
    return button;
  }

  updateToggles() {
    for (const { name, button } of this.legendButtons)
      button.setAttribute('aria-pressed', String(!this.hidden.has(name)));
  }

  setOther(value) {
    this.other = value;
    for (const choice of this.choices)
      choice.button.setAttribute('aria-pressed', String(choice.value === value));
    this.measure();
    this.zoom(0, 100);
    this.draw();
  }

  /** Shows the part of the range from `start` to `end` percent in all charts. */
  zoom(start, end) {
    for (const plot of this.plots.filter((each) => each.zoomable))
      plot.zoom(start, end);
  }

  /** Shows what is at x, or nothing (null), in all charts but `from`, where the pointer is. */
  point(x, from) {
    if (x === this.pointed)
      return; // the others tell that they were told
    this.pointed = x;
    for (const plot of this.plots)
      if (plot !== from && !isBars(plot.chart))
        plot.point(x);
  }

  draw() {
    for (const plot of this.plots ?? [])
      plot.draw();
  }
}
