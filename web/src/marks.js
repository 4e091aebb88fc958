// What the chart library has no series for: bands around lines, error bars, event marks.

/** The outline of a band: along the upper side, back along the lower one. Stairs where `stepped`. */
function outline(band, stepped) {
  const low = [], high = [];
  for (const [i, [x, least, most]] of band.entries()) {
    if (stepped && i > 0) {
      low.push([x, band[i - 1][1]]);
      high.push([x, band[i - 1][2]]);
    }
    low.push([x, least]);
    high.push([x, most]);
  }
  return [...high, ...low.reverse()];
}

export function bandSeries(band, { stepped, colour, dimmed }) {
  const points = outline(band, stepped);
  return {
    type: 'custom', silent: true, clip: true, z: 1, data: band, encode: { x: 0, y: [1, 2] },
    // all of it with its first point
    renderItem: (params, api) => (params.dataIndex > 0 ? null : {
      type: 'polygon',
      shape: { points: points.map((point) => api.coord(point)) },
      style: { fill: colour, opacity: dimmed },
    }),
  };
}

/** Whiskers on bars: `place` and `places` are the bar's among those of its category, 0 and 1 where bars are stacked. */
export function errorBarSeries(band, { flat, place, places, layout, colour }) {
  return {
    type: 'custom', silent: true, z: 4, data: band, encode: flat ? { y: 0, x: [1, 2] } : { x: 0, y: [1, 2] },
    renderItem: (params, api) => {
      const across = api.barLayout({ count: places, ...layout })[place].offsetCenter;
      const ends = [1, 2].map((i) => api.coord(flat ? [api.value(i), api.value(0)] : [api.value(0), api.value(i)]));
      const at = ([x, y], d) => (flat ? [x, y + across + d] : [x + across + d, y]);
      const line = (a, b) => ({
        type: 'line', style: { stroke: colour, lineWidth: 1.5 }, shape: { x1: a[0], y1: a[1], x2: b[0], y2: b[1] },
      });
      return {
        type: 'group',
        children: [line(at(ends[0], 0), at(ends[1], 0)), ...ends.map((end) => line(at(end, -4), at(end, 4)))],
      };
    },
  };
}

/** Shapes of marks, as SVG paths around (0, 0); the first ones are the most unlike. */
export const SHAPES = [
  'M0,4.5L-4.5,-4L4.5,-4Z', // triangle, point down
  'M-4,0A4,4,0,1,0,4,0A4,4,0,1,0,-4,0Z', // circle
  'M0,-5L5,0L0,5L-5,0Z', // diamond
  'M-3.6,-3.6H3.6V3.6H-3.6Z', // square
  'M0,-4.5L-4.5,4L4.5,4Z', // triangle, point up
  'M-1.5,-5H1.5V-1.5H5V1.5H1.5V5H-1.5V1.5H-5V-1.5H-1.5Z', // cross
];
export const EVENT_ROW = 12; // the height of a row of marks in the strip above the plot

/** Events of one name: a mark for each, in the strip's row number `row` from below (1 is the lowest), with a line down
 * through the plot where `lines`. */
export function eventSeries(xs, { shape, row, colour, lines }) {
  return {
    type: 'custom', silent: true, clip: false, z: 5, yAxisIndex: 1, data: xs.map((x) => [x, 1]), encode: { x: 0, y: 1 },
    renderItem: (params, api) => {
      const { x: left, y: top, width, height } = params.coordSys;
      const [x] = api.coord([api.value(0), 1]);
      if (!(x >= left - 0.5 && x <= left + width + 0.5)) // not in the part that is zoomed into
        return null;
      const y = top - 2 - (row - 0.5) * EVENT_ROW;
      const mark = {
        type: 'path', x, y, shape: { pathData: SHAPES[shape] }, style: { fill: colour },
      };
      const line = {
        type: 'line', shape: { x1: x, y1: y + 5, x2: x, y2: top + height },
        style: { stroke: colour, lineDash: [3, 3], lineWidth: 1, opacity: 0.55 },
      };
      return { type: 'group', children: lines ? [mark, line] : [mark] };
    },
  };
}
