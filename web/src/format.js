// Numbers as people read them.

const SUFFIXES = [[1e12, 'T'], [1e9, 'G'], [1e6, 'M'], [1e3, 'k']];

/** At most `digits` significant digits, no trailing zeros. */
function significant(value, digits) {
  return String(Number(value.toPrecision(digits)));
}

/** For axes, at most seven characters: 12000 is "12k", 0.00001 is "1e-5". */
export function short(value) {
  const size = Math.abs(value);
  if (size >= 1e15 || (size > 0 && size < 1e-4))
    return value.toExponential(2).replace(/\.?0*e\+?/, 'e');
  for (const [unit, suffix] of size >= 1e4 ? SUFFIXES : [])
    if (size >= unit)
      return significant(value / unit, 4) + suffix;
  return significant(value, 5);
}

/** For tooltips: six significant digits, thousands grouped. */
export function full(value) {
  if (value !== 0 && Math.abs(value) < 1e-4)
    return significant(value, 6);
  const whole = Math.max(1, Math.floor(Math.log10(Math.abs(value) || 1)) + 1);
  return value.toLocaleString('en-US', { maximumFractionDigits: Number.isInteger(value) ? 0 : Math.max(0, 6 - whole) });
}

/** A function that formats all numbers of a column with the same decimals: `digits`, or as many as give the largest
 * number four significant digits. */
export function columnFormat(values, digits) {
  const numbers = values.filter((value) => typeof value === 'number');
  const largest = numbers.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
  if (digits === undefined)
    digits = numbers.every(Number.isInteger) || largest === 0
      ? 0 : Math.min(12, Math.max(0, 3 - Math.floor(Math.log10(largest))));
  const options = { minimumFractionDigits: digits, maximumFractionDigits: digits };
  return (value) => value.toLocaleString('en-US', options);
}
