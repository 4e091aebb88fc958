// A description with every kind of chart, and texts that would do harm if they became HTML.

export const HOSTILE = '</script><script>window.harmed = true</script><img src=x onerror="window.harmed = true"> "&\'';

const range = (count) => Array.from({ length: count }, (_, i) => i);
const fractions = range(17).map((i) => i * 0.0005);
const withBand = (name, f) => ({
  name, points: fractions.map((x) => [x, f(x)]), band: fractions.map((x) => [x, 0.85 * f(x), 1.15 * f(x) + 0.05]),
});

const losses = {
  heading: `Throughput lost ${HOSTILE}`,
  text: [`A paragraph. ${HOSTILE}`],
  chart: {
    kind: 'line', x: { name: 'fraction of GPUs that have failed' }, y: { name: 'throughput lost, %' },
    series: [withBand('DP-DROP', (x) => 3000 * x), { ...withBand('NTP', (x) => 400 * x), dashed: true },
      { name: HOSTILE, kind: 'scatter', points: [[0.004, 12], [0.004, 3]] }],
  },
  table: {
    columns: ['policy', 'lost, %', { name: 'spares', digits: 1 }, HOSTILE],
    rows: [['DP-DROP', 12.4, 90, HOSTILE], ['NTP', 2.98765, 16.25, 'two replicas, "whole"'], ['NTP-PW', 0, 0, null]],
  },
};

const logarithmic = {
  heading: 'Logarithmic axes',
  chart: {
    kind: 'line', x: { name: 'cluster size, GPUs', log: true }, y: { name: 'hours between failures', log: true },
    series: [8, 72].map((domain) => ({
      name: `domain of ${domain}`,
      points: range(10).map((i) => [10 ** (2 + i / 3), i === 9 ? 0 : (domain * 1e5) / 10 ** (2 + i / 3)]),
      band: range(10).map((i) => [10 ** (2 + i / 3), i > 6 ? 0 : (domain * 7e4) / 10 ** (2 + i / 3), (domain * 1.4e5) / 10 ** (2 + i / 3)]),
    })),
  },
};

const bars = {
  heading: 'Bars',
  charts: [
    {
      name: 'Goodput by policy', kind: 'bar', x: { name: 'policy' }, y: { name: 'goodput, %' },
      categories: ['restart from checkpoint', 'DP-DROP', HOSTILE, 'NTP'],
      series: [
        { name: 'packed', points: [[0, 80], [1, 88], [2, 90], [3, 97]], band: [[0, 78, 83], [1, 86, 90], [2, 88, 92], [3, 96, 98]] },
        { name: 'left', points: [[0, 70], [1, 36], [2, null], [3, 92]] }],
    },
    {
      name: 'Where time goes', kind: 'bar', stacked: true, x: { name: 'policy' }, y: { name: 'share of time, %' },
      categories: ['DP-DROP', 'NTP'],
      series: [{ name: 'productive', points: [[0, 88], [1, 97]] }, { name: 'redone', points: [[0, 12], [1, 3]] }],
    },
    {
      name: 'What the step time depends on', kind: 'bar', flat: true, base: 13.75, y: { name: 'predicted step time, s' },
      categories: ['link bandwidth', 'efficiency of matrix products at large sizes', 'overlap of communication'],
      series: [{ name: 'input at its least', points: [[0, 14.9], [1, 15.3], [2, 14.2]] },
        { name: 'input at its most', points: [[0, 13], [1, 12.1], [2, 13.2]] }],
    },
  ],
};

const STEPS = 400;
const steps = (name, kind, series) => ({ name, kind, x: { name: 'step' }, y: { name: name.toLowerCase() }, series });
const overTime = {
  heading: 'Steps',
  other_x: { name: 'hours since the launch', points: range(STEPS + 1).map((i) => [i, 0.3 * i + (i > 200 ? 5 : 0)]) },
  events: [
    { x: 120, name: 'failure', tone: 'bad', text: `replica 1 slot 2 ${HOSTILE}`, other_x: 36.5 },
    { x: 120, name: 'recovered', text: 'replica 1 goes on as TP3' },
    { x: 250, name: 'rejoined', text: 'replica 1 slot 2 is back' }],
  charts: [
    // high in the first half, low in the second
    steps('Loss', 'line', [{ name: 'loss', points: range(STEPS + 1).map((i) => [i, (i < 200 ? 8 : 2) + Math.sin(i)]) }]),
    steps('Degree', 'step', [{ name: 'replica 0', points: [[0, 4], [STEPS, 4]] },
      { name: 'replica 1', points: [[0, 4], [120, 3], [250, 4], [STEPS, 4]] }]),
    steps('Samples', 'area', ['replica 0', 'replica 1'].map((name) => ({ name, points: range(STEPS + 1).map((i) => [i, 8]) }))),
    steps('Seconds', 'scatter', [{ name: 'measured', points: range(60).map((i) => [i * 6.5, 1 + 0.2 * Math.sin(i * i)]) }]),
  ],
};

export const sample = {
  title: `Every chart ${HOSTILE}`,
  subtitle: HOSTILE,
  text: [HOSTILE],
  facts: [{ name: 'steps', value: '60' }, { name: HOSTILE, value: HOSTILE }],
  sections: [losses, logarithmic, bars, overTime, { heading: 'Only words', text: ['None.'] },
    { heading: 'No points', chart: { x: { name: 'step' }, y: { name: 'loss' }, series: [{ name: 'loss', points: [] }] } }],
};
