// From a chart of the description to an option of the chart library.
//
// A chart here is what section.js has made of the description: {kind, x, y, categories, flat, stacked, base, series,
// events}, with each series {name, kind, points, band, dashed, colour, shape} and events grouped by name [{name, tone,
// shape, marks: [{x, text}]}], x already in the measure that is shown. A view says how to show it: {theme, printing,
// hidden (names), range (of x), seen (the part zoomed into), zoomable,
// places (where the pointer stops), width}.
import { short } from './format.js';
import { bandSeries, errorBarSeries, eventSeries, EVENT_ROW, SHAPES } from './marks.js';
import { windowOf } from './points.js';

const LEFT = 60, RIGHT = 20; // the same everywhere, so that plots stand exactly below each other
export const MARKED_POINTS_MOST = 40; // with more a line says enough
const EVENT_LINES_MOST = 60; // with more the lines hide the plot
const SYMBOLS = ['circle', 'rect', 'triangle', 'diamond', 'emptyCircle', 'emptyRect', 'emptyTriangle', 'emptyDiamond'];

export const isBars = (chart) => chart.kind === 'bar';
/** Whether there is more in it than can be seen at once. */
export const isDense = (chart) => !isBars(chart) && chart.series.some((series) => series.points.length > 24);
/** Of the strip above the plot: a row for each name of events, since those of different names often coincide. */
const stripHeight = (chart) => (chart.events.length ? chart.events.length * EVENT_ROW + 4 : 0);

/** Only what a logarithmic axis can show. */
function showable(points, y) {
  return y.log ? points.map(([x, value]) => [x, value > 0 ? value : null]) : points;
}

function showableBand(band, series, y) {
  if (!y.log)
    return band;
  const positive = [...band.flat(), ...series.points.map((point) => point[1])].filter((value) => value > 0);
  const least = Math.min(...positive);
  return band.filter(([, , high]) => high > 0).map(([x, low, high]) => [x, low > 0 ? low : least, high]);
}

function lineSeries(chart, series, { theme, seen, above, lowest }) {
  const colour = theme.series[series.colour];
  const points = showable(windowOf(series.points, seen), chart.y);
  const scattered = series.kind === 'scatter';
  const stepped = series.kind === 'step';
  // stairs often lie on each other: the lower ones are wider, so that they show
  const width = scattered ? 0 : series.kind === 'area' ? 1 : stepped ? 2 + Math.min(2.5 * above, 4 * above / lowest) : 2;
  return {
    type: 'line', name: series.name, data: points, z: 3,
    step: stepped ? 'end' : false,
    ...(series.kind === 'area' && { stack: 'area', areaStyle: { color: colour, opacity: 0.75 } }),
    color: colour,
    lineStyle: { color: colour, width, type: series.dashed ? [6, 4] : 'solid' },
    symbol: SYMBOLS[series.shape], symbolSize: 7,
    showSymbol: scattered || (!stepped && series.kind !== 'area' && series.points.length <= MARKED_POINTS_MOST), showAllSymbol: true,
    emphasis: { disabled: true },
  };
}

function lines(chart, view) {
  const shown = chart.series.filter((series) => !view.hidden.has(series.name));
  return shown.flatMap((series, i) => {
    const band = series.band && showableBand(windowOf(series.band, view.seen), series, chart.y);
    return [
      ...(band ? [bandSeries(band, {
        stepped: series.kind === 'step', colour: view.theme.series[series.colour], dimmed: 0.18,
      })] : []),
      lineSeries(chart, series, { ...view, above: shown.length - 1 - i, lowest: Math.max(1, shown.length - 1) })];
  });
}

function bars(chart, { theme, hidden, width }) {
  const flat = liesDown(chart, width);
  const shown = chart.series.filter((series) => !hidden.has(series.name));
  const base = chart.base ?? 0;
  const overlaid = chart.base !== undefined; // a tornado: what lies left and right of the base shares a row
  const layout = { barGap: overlaid ? '-100%' : '10%', barCategoryGap: '35%', barMaxWidth: 48 };
  return shown.flatMap((series, i) => {
    const bar = {
      type: 'bar', name: series.name, ...layout,
      data: series.points.map(([x, y]) => [x, y === null ? null : y - base]).map((point) => (flat ? point.reverse() : point)),
      stack: chart.stacked ? 'all' : undefined,
      color: theme.series[series.colour],
      itemStyle: { borderColor: theme.paper, borderWidth: chart.stacked ? 1 : 0 },
      emphasis: { disabled: true },
    };
    const joined = chart.stacked || overlaid;
    return series.band
      ? [bar, errorBarSeries(series.band.map(([x, low, high]) => [x, low - base, high - base]), {
        flat, place: joined ? 0 : i, places: joined ? 1 : shown.length, layout, colour: theme.ink,
      })] : [bar];
  });
}

function events(chart, { theme, hidden }) {
  const shown = chart.events.filter((event) => !hidden.has(event.name));
  const count = shown.reduce((sum, event) => sum + event.marks.length, 0);
  return shown.map((event) => eventSeries(event.marks.map((mark) => mark.x), {
    shape: event.shape % SHAPES.length, row: chart.events.length - chart.events.indexOf(event), colour: event.tone === 'bad' ? theme.bad : theme.muted,
    lines: count <= EVENT_LINES_MOST,
  }));
}

/* ------------------------------------------------------------------------------------------------- axes */

function axisStyle(theme) {
  return {
    axisLine: { show: true, lineStyle: { color: theme.muted } },
    axisTick: { show: true, lineStyle: { color: theme.muted } },
    axisLabel: { color: theme.muted, fontSize: 12, hideOverlap: true },
    splitLine: { lineStyle: { color: theme.grid } },
    nameTextStyle: { color: theme.muted, fontSize: 12 },
    minorTick: { show: false },
  };
}

/** Whether all its values are whole numbers, so that ticks between them would mean nothing. */
function areWhole(chart) {
  return chart.series.every((series) => !series.band && series.points.every(([, y]) => y === null || Number.isInteger(y)));
}

function valueAxis(chart, axis, theme) {
  const style = axisStyle(theme);
  const base = chart.base ?? 0;
  const fromZero = axis.zero || isBars(chart) || chart.kind === 'area';
  return {
    ...style, type: axis.log ? 'log' : 'value', scale: !fromZero,
    axisLabel: { ...style.axisLabel, formatter: (value) => short(value + base) },
    ...(areWhole(chart) && !axis.log && { minInterval: 1 }),
  };
}

function namedBelow(name, nameGap = 28) {
  return { name, nameLocation: 'middle', nameGap };
}

function categoryAxis(chart, theme, width, flat) {
  const style = axisStyle(theme);
  return {
    ...style, type: 'category', data: chart.categories, inverse: flat, axisTick: { show: false },
    splitLine: { show: false },
    axisLabel: { ...style.axisLabel, interval: 0, hideOverlap: false, width, overflow: 'break', lineHeight: 14 },
  };
}

const CHARACTER = 7; // pixels, about
const linesOf = (names, room) => Math.max(1, ...names.map((name) => Math.ceil((name.length * CHARACTER) / room)));

/** Bars lie where the names of standing ones would have too little room. */
function liesDown(chart, width) {
  return Boolean(chart.flat) || (width - LEFT - RIGHT) / chart.categories.length < 70;
}

/** Room for the names of bars that lie, and that stand. */
function nameRoom(chart, width) {
  const longest = Math.max(1, ...chart.categories.map((name) => name.length));
  return liesDown(chart, width)
    ? Math.min(longest * CHARACTER, width * 0.4) : (width - LEFT - RIGHT) / chart.categories.length - 8;
}

function barAxes(chart, { theme, width }) {
  const room = nameRoom(chart, width);
  const flat = liesDown(chart, width);
  const names = categoryAxis(chart, theme, room, flat);
  const values = valueAxis(chart, chart.y, theme);
  if (flat) {
    return {
      xAxis: { ...values, ...namedBelow(chart.y.name), splitNumber: Math.max(2, Math.round((width - room) / 110)) },
      yAxis: names, grid: { left: room + 14, bottom: 48 },
    };
  }
  const below = 14 * linesOf(chart.categories, room);
  return {
    xAxis: { ...names, ...namedBelow(chart.x.name, 18 + below) }, yAxis: values, grid: { left: LEFT, bottom: 38 + below },
  };
}

function lineAxes(chart, { theme, range, zoomable, printing }) {
  const style = axisStyle(theme);
  const x = {
    ...style, ...namedBelow(chart.x.name), type: chart.x.log ? 'log' : 'value', min: range[0], max: range[1],
    axisLabel: { ...style.axisLabel, formatter: short, alignMaxLabel: 'right' }, splitLine: { show: false },
  };
  return {
    xAxis: x,
    yAxis: [valueAxis(chart, chart.y, theme), { show: false, min: 0, max: 1 }], // the second for events
    grid: { left: LEFT, bottom: zoomable && !printing ? 74 : 48 },
  };
}

/* ----------------------------------------------------------------------------------------------- option */

function zoom(theme) {
  return [
    // a wheel that turns without Ctrl scrolls the page, and so does a finger
    { type: 'inside', filterMode: 'none', zoomOnMouseWheel: 'ctrl', moveOnMouseWheel: false, preventDefaultMouseMove: false },
    {
      type: 'slider', filterMode: 'none', height: 16, bottom: 6, left: LEFT, right: RIGHT, showDetail: false,
      showDataShadow: false, brushSelect: false, borderColor: theme.grid, fillerColor: theme.grid,
      handleStyle: { color: theme.paper, borderColor: theme.muted }, moveHandleSize: 0, throttle: 50,
    },
  ];
}

/** No line, but what the pointer snaps to: every chart of a section has the same places, whatever points it has. */
function placesSeries(places) {
  return { type: 'line', data: places.map((x) => [x, null]), symbol: 'none', silent: true };
}

/** Everything but the tooltip. */
export function makeOption(chart, view) {
  const { grid, ...axes } = isBars(chart) ? barAxes(chart, view) : lineAxes(chart, view);
  return {
    animation: false,
    textStyle: { fontFamily: 'system-ui, sans-serif' },
    ...axes,
    grid: {
      ...grid, right: RIGHT, top: stripHeight(chart) + 10, outerBoundsMode: 'none',
    },
    ...(view.zoomable && !view.printing && { dataZoom: zoom(view.theme) }),
    series: isBars(chart)
      ? bars(chart, view) : [placesSeries(view.places), ...lines(chart, view), ...events(chart, view)],
  };
}

export function heightOf(chart, { width, printing }) {
  if (!isBars(chart) || !liesDown(chart, width))
    return (printing ? 180 : 270) + stripHeight(chart); // three on a sheet of paper
  const bars = chart.stacked || chart.base !== undefined ? 1 : chart.series.length;
  const row = Math.max(30, 18 * bars + 10, 15 * linesOf(chart.categories, nameRoom(chart, width)) + 8);
  return 70 + chart.categories.length * row;
}
