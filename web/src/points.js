// Points of series: sorted by x, [x, y]; y may be null, a gap.

/** The index of the last point at or before x; -1: all are behind it. */
function lastBefore(points, x) {
  let low = 0, high = points.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (points[middle][0] <= x)
      low = middle + 1;
    else
      high = middle;
  }
  return low - 1;
}

/** What is seen between two xs: with one neighbour on each side, so that lines leave the plot. */
export function windowOf(points, [first, last]) {
  return points.slice(Math.max(0, lastBefore(points, first)), lastBefore(points, last) + 2);
}

/** The point that stands for x: for a stepped series the one before it, else the nearest. undefined: there is none. */
export function pointAt(points, x, stepped) {
  const i = lastBefore(points, x);
  if (stepped || i + 1 === points.length)
    return points[i];
  return i < 0 || points[i + 1][0] - x < x - points[i][0] ? points[i + 1] : points[i];
}

/** A function from x to another measure of it, straight between the [x, other] of `points`. */
export function interpolation(points) {
  return (x) => {
    const i = Math.min(Math.max(lastBefore(points, x), 0), points.length - 2);
    if (points.length < 2)
      return points[0][1];
    const [[x0, y0], [x1, y1]] = [points[i], points[i + 1]];
    return x1 === x0 ? y1 : y0 + ((x - x0) / (x1 - x0)) * (y1 - y0);
  };
}
