// One chart of a section: the figure, and the chart library's drawing in it.
import * as echarts from 'echarts/core';
import { BarChart, CustomChart, LineChart } from 'echarts/charts';
import { DataZoomInsideComponent, DataZoomSliderComponent, GridComponent, TooltipComponent } from 'echarts/components';
import { SVGRenderer } from 'echarts/renderers';
import { create, createButton, createCsvButton } from './elements.js';
import { heightOf, isBars, makeOption, MARKED_POINTS_MOST } from './option.js';
import { currentColours, isPrinting } from './theme.js';
import { tooltipOption } from './tooltip.js';

echarts.use([BarChart, CustomChart, DataZoomInsideComponent, DataZoomSliderComponent, GridComponent, LineChart,
  SVGRenderer, TooltipComponent]);

const PRINT_WIDTH = 660; // fits A4 and Letter within the margins of page.css

function describe(chart, name) {
  const kinds = { line: 'line chart', step: 'step chart', area: 'stacked area chart', bar: 'bar chart', scatter: 'scatter chart' };
  const over = isBars(chart) ? '' : ` over ${chart.x.name}`;
  const events = chart.events.map((event) => `${event.marks.length} × ${event.name}`);
  return `${name}: ${kinds[chart.kind]} of ${chart.series.map((series) => series.name).join(', ')}${over}`
    + (events.length ? `; events: ${events.join(', ')}` : '');
}

/** Rows of a CSV file, one for each point. */
function rowsOf(chart) {
  const x = isBars(chart) ? (index) => chart.categories[index] : (value) => value;
  const rows = [['series', isBars(chart) ? 'category' : chart.x.name, chart.y.name, 'low', 'high']];
  for (const series of chart.series) {
    const bands = new Map((series.band ?? []).map((entry) => [entry[0], entry]));
    for (const [at, y] of series.points)
      rows.push([series.name, x(at), y, bands.get(at)?.[1], bands.get(at)?.[2]]);
  }
  return rows;
}

export class Plot {
  /** The chart number `index` of the section. */
  constructor(section, index) {
    this.section = section;
    this.index = index;
    const { chart } = this;
    const name = chart.name ?? chart.y.name ?? section.description.heading;
    this.zoomable = section.zoomable && !isBars(chart);
    this.seen = [0, 100]; // percent of the range
    this.resetButton = createButton('Whole range', () => section.zoom(0, 100));
    this.resetButton.hidden = true;
    this.canvas = create('div', { class: 'chart', role: 'img', 'aria-label': describe(chart, name) });
    this.figure = create('figure', {}, create('figcaption', {},
      create('div', {},
        ...(chart.name ? [create('h3', {}, chart.name)] : []),
        // bars that always lie have their measure below them
        ...(chart.flat || !chart.y.name || chart.y.name.toLowerCase() === chart.name?.toLowerCase() ? [] : [create('p', {}, chart.y.name)])),
      create('div', { class: 'tools' }, this.resetButton, createCsvButton(name, () => rowsOf(this.chart)))),
    ...this.createLegend(), this.canvas);
  }

  get chart() {
    return this.section.charts[this.index];
  }

  createLegend() {
    const { chart, section } = this;
    if (chart.series.length < 2)
      return [];
    const bars = isBars(chart);
    return [create('div', { class: 'legend', role: 'group', 'aria-label': 'Series' }, ...chart.series.map((series) =>
      section.createToggle({
        series, name: series.name, bars,
        symbols: series.kind === 'scatter' || (series.kind === 'line' && series.points.length <= MARKED_POINTS_MOST),
      })))];
  }

  /** Once the figure is part of the page. */
  start() {
    this.drawing = echarts.init(this.canvas, null, { renderer: 'svg', width: 100, height: 100 }); // draw() sets the size
    this.drawing.on('datazoom', (event) => {
      const { start, end } = event.batch?.[0] ?? event;
      this.section.zoom(start, end);
    });
    if (!isBars(this.chart)) {
      this.drawing.on('updateAxisPointer', (event) => this.section.point(event.axesInfo?.[0]?.value ?? null, this));
      this.drawing.getZr().on('globalout', () => this.section.point(null, this));
    }
    this.draw();
    new ResizeObserver(() => this.resize()).observe(this.canvas);
  }

  resize() {
    const width = this.canvas.clientWidth;
    if (!isPrinting() && width && width !== this.drawing.getWidth())
      this.draw();
  }

  toPixel(x) {
    return this.drawing.convertToPixel({ xAxisIndex: 0 }, x);
  }

  view() {
    const { section } = this;
    const printing = isPrinting();
    const [first, last] = section.range;
    const log = this.chart.x?.log;
    const place = (percent) => (log ? first * (last / first) ** (percent / 100) : first + (last - first) * (percent / 100));
    return {
      theme: currentColours(), printing, hidden: section.hidden, range: section.range, seen: this.seen.map(place),
      zoomable: this.zoomable, places: section.places,
      width: printing ? PRINT_WIDTH : this.canvas.clientWidth,
    };
  }

  draw() {
    const view = this.view();
    const height = heightOf(this.chart, view);
    this.canvas.style.height = `${height}px`;
    this.drawing.resize({ width: view.width, height });
    const option = makeOption(this.chart, view);
    for (const zoom of option.dataZoom ?? [])
      [zoom.start, zoom.end] = this.seen;
    if (view.printing && this.zoomable) // a part that was zoomed into stays so
      [option.xAxis.min, option.xAxis.max] = view.seen;
    option.tooltip = tooltipOption(this.chart, view, (x) => this.toPixel(x));
    this.drawing.setOption(option, true);
    this.drawing.getZr().flush();
  }

  /** Shows another part of the range; the vertical axis follows what is in it. */
  zoom(start, end) {
    if (start === this.seen[0] && end === this.seen[1])
      return;
    this.seen = [start, end];
    this.resetButton.hidden = start === 0 && end === 100;
    const { series } = makeOption(this.chart, this.view());
    // no more than that: the slider may be in somebody's hand
    this.drawing.setOption({ series, dataZoom: [{ start, end }, { start, end }] }, { replaceMerge: ['series'] });
  }

  /** Shows what is at x, or nothing. */
  point(x) {
    if (x === null)
      this.drawing.dispatchAction({ type: 'hideTip' });
    else
      this.drawing.dispatchAction({ type: 'showTip', x: this.toPixel(x), y: this.drawing.getHeight() / 2 });
  }
}
