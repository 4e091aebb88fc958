// Reports in headless Chromium: page.mjs COMMAND WRITE_PAGE CONFIG DATA, with EK_WEB the folder of the installed npm
// packages. Exit status 77 where there is no Chromium.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { after, before, test } from 'node:test';
import { isDeepStrictEqual } from 'node:util';
import { HOSTILE, sample } from './sample.mjs';

const CHROMIUM = '/usr/bin/chromium';
if (!existsSync(CHROMIUM)) {
  console.log(`${CHROMIUM} is not there: scripts/install-packages browser installs it`);
  process.exit(77);
}
const { chromium } = createRequire(`${process.env.EK_WEB}/`)('playwright-core');
const [command, writePage, config, data] = process.argv.slice(2);

const WIDE = { width: 1000, height: 900 };
let folder, browser, samplePage, runPage;

/** A small run that loses a rank, goes on and gets it back. */
function makeRunPage() {
  const metrics = join(folder, 'run.jsonl'), page = join(folder, 'run.html');
  execFileSync(command, ['train', '--config', config, '--set', `data.path=${data}`, '--set', 'model.layers=1', '--set',
    'model.hidden=32', '--set', 'model.ffn=64', '--set', 'train.steps=40', '--kill', '10:1.2', '--rejoin', '20:1.2',
    '--metrics', metrics, '--quiet']);
  execFileSync(command, ['report', metrics, '-o', page, '--title', HOSTILE]);
  return page;
}

before(async () => {
  folder = mkdtempSync(join(tmpdir(), 'evenkeel-page-'));
  samplePage = join(folder, 'sample.html');
  writeFileSync(join(folder, 'sample.json'), JSON.stringify(sample));
  execFileSync(writePage, [join(folder, 'sample.json'), samplePage]);
  runPage = makeRunPage();
  browser = await chromium.launch({
    executablePath: CHROMIUM,
    args: ['--headless', '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run',
      '--disable-background-networking', '--disable-component-update', '--disable-sync'],
  });
});

after(async () => {
  await browser?.close();
  rmSync(folder, { recursive: true, force: true });
});

/** Opens a page, lets `check` look at it, and fails if it complained, or asked for anything but itself. */
async function visit(file, options, check) {
  const context = await browser.newContext({ viewport: WIDE, ...options });
  const page = await context.newPage();
  const complaints = [], requests = [];
  page.on('console', (message) => complaints.push(message.text()));
  page.on('pageerror', (error) => complaints.push(error.stack));
  page.on('request', (request) => requests.push(request.url()));
  await page.goto(`file://${file}`);
  await page.waitForSelector('.chart svg');
  await check(page);
  assert.deepEqual(complaints, []);
  assert.deepEqual(requests.filter((url) => !url.startsWith('blob:')), [`file://${file}`]);
  await context.close();
}

const chartsOf = (description) => description.sections.flatMap((section) => section.charts ?? (section.chart ? [section.chart] : []));
const figure = (page, name) => page.locator('figure').filter({ has: page.getByRole('heading', { name, exact: true }) });
const texts = (locator) => locator.evaluateAll((elements) => elements.map((element) => element.textContent));
/** The distinct colours in which paths of a chart are stroked or filled. */
const colours = (locator) => locator.locator('svg path').evaluateAll((paths) =>
  [...new Set(paths.flatMap((path) => [path.getAttribute('stroke'), path.getAttribute('fill')]))]);
const variable = (page, name) => page.evaluate((key) => getComputedStyle(document.documentElement).getPropertyValue(key), name);

/** Waits until `check` gives true; browsers tell pages of some changes a frame later. */
async function eventually(check, what) {
  for (let tries = 0; !await check(); tries++) {
    assert.ok(tries < 100, what);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

/** Moves the pointer to a fraction of the plot's width. */
async function hover(page, chart, fraction) {
  await chart.scrollIntoViewIfNeeded();
  const box = await chart.boundingBox();
  const left = 60, right = 20; // of the plot in the chart: LEFT and RIGHT of option.js
  const x = box.x + left + (box.width - left - right) * fraction;
  await page.mouse.move(x - 3, box.y + box.height / 2);
  await page.mouse.move(x, box.y + box.height / 2);
}

test('every chart is drawn', async () => {
  await visit(samplePage, {}, async (page) => {
    const charts = page.locator('.chart');
    assert.equal(await charts.count(), chartsOf(sample).length);
    for (const chart of await charts.all())
      assert.ok(await chart.locator('svg path').count() > 3, await chart.getAttribute('aria-label'));
    assert.deepEqual(await texts(page.getByRole('heading', { level: 2 })), sample.sections.map((section) => section.heading));
  });
});

test('texts are texts', async () => {
  for (const file of [samplePage, runPage]) {
    await visit(file, {}, async (page) => {
      assert.equal(await page.evaluate(() => window.harmed), undefined);
      assert.equal(await page.locator('img').count(), 0);
      assert.equal(await page.locator('h1').textContent(), file === samplePage ? sample.title : HOSTILE);
      assert.equal(await page.title(), file === samplePage ? sample.title : HOSTILE);
    });
  }
  await visit(samplePage, {}, async (page) => {
    assert.ok((await texts(page.locator('td'))).includes(HOSTILE));
    assert.ok((await texts(page.locator('.legend button'))).includes(HOSTILE));
    await hover(page, page.locator('.chart').first(), 0.5);
    assert.ok((await page.locator('.tooltip').first().textContent()).includes(HOSTILE));
    assert.equal(await page.evaluate(() => window.harmed), undefined);
  });
});

test('numbers of a table', async () => {
  await visit(samplePage, {}, async (page) => {
    const cells = page.locator('tbody td:nth-child(2)');
    assert.deepEqual(await texts(cells), ['12.40', '2.99', '0.00']);
    assert.deepEqual(await texts(page.locator('tbody td:nth-child(3)')), ['90.0', '16.3', '0.0']);
    assert.equal(await cells.first().evaluate((cell) => getComputedStyle(cell).textAlign), 'right');
    assert.equal(await page.locator('th[scope=col]').count(), 4);
  });
});

test('the place under the pointer is told, with its events', async () => {
  await visit(samplePage, {}, async (page) => {
    await hover(page, figure(page, 'Degree').locator('.chart'), 120 / 400);
    const tooltip = figure(page, 'Degree').locator('.tooltip');
    await tooltip.waitFor({ state: 'visible' });
    const text = await tooltip.textContent();
    for (const part of ['step 120', 'replica 04', 'replica 13', 'failure replica 1 slot 2', 'recovered replica 1 goes on as TP3'])
      assert.ok(text.includes(part), `${part} in ${text}`);
    assert.ok(!text.includes('rejoined'));
    await eventually(() => figure(page, 'Loss').locator('.tooltip').isVisible(), 'other charts of the section tell the same step');
    await hover(page, figure(page, 'Goodput by policy').locator('.chart'), 0.1);
    assert.match(await figure(page, 'Goodput by policy').locator('.tooltip').textContent(), /^restart from checkpointpacked80 \(78 to 83\)left70$/);
  });
});

test('legends hide and show series and events, in all charts of a section', async () => {
  await visit(samplePage, {}, async (page) => {
    const colour = await variable(page, '--series-1'); // of the second replica
    const button = figure(page, 'Degree').getByRole('button', { name: 'replica 1' });
    for (const shown of [false, true]) {
      await button.click();
      assert.equal(await button.getAttribute('aria-pressed'), String(shown));
      for (const name of ['Degree', 'Samples'])
        assert.equal((await colours(figure(page, name).locator('.chart'))).includes(colour), shown, name);
    }
    const bad = await variable(page, '--bad');
    await page.getByRole('button', { name: 'failure', exact: true }).click();
    assert.ok(!(await colours(figure(page, 'Loss').locator('.chart'))).includes(bad));
    await page.getByRole('button', { name: 'failure', exact: true }).press('Enter');
    assert.ok((await colours(figure(page, 'Loss').locator('.chart'))).includes(bad));
  });
});

test('charts of a section are zoomed together, and vertical axes follow', async () => {
  await visit(samplePage, {}, async (page) => {
    const labels = (name) => texts(figure(page, name).locator('.chart svg text'));
    const names = ['Loss', 'Degree', 'Samples', 'Seconds'];
    const whole = await Promise.all(names.map(labels));
    for (const shown of whole)
      assert.ok(shown.includes('100'));
    assert.ok(whole[0].includes('8'), 'the loss is high in the first half');
    await hover(page, figure(page, 'Loss').locator('.chart'), 1);
    await page.keyboard.down('Control');
    for (let turns = 0; turns < 12; turns++)
      await page.mouse.wheel(0, -200);
    await page.keyboard.up('Control');
    for (const name of names) {
      await eventually(async () => !(await labels(name)).includes('100'), `${name} begins later`);
      assert.ok(await figure(page, name).getByRole('button', { name: 'Whole range' }).isVisible());
    }
    assert.ok(!(await labels('Loss')).includes('8'), 'the loss is low in the second half');
    await figure(page, 'Samples').getByRole('button', { name: 'Whole range' }).click();
    await eventually(async () => isDeepStrictEqual(await Promise.all(names.map(labels)), whole), 'all is seen again');
    assert.ok(!await figure(page, 'Loss').getByRole('button', { name: 'Whole range' }).isVisible());

    const box = await figure(page, 'Degree').locator('.chart').boundingBox();
    const slider = box.y + box.height - 14; // 16 pixels high, 6 above the edge
    await page.mouse.move(box.x + 60, slider);
    await page.mouse.down();
    await page.mouse.move(box.x + box.width / 2, slider, { steps: 12 });
    await page.mouse.up();
    for (const name of names)
      await eventually(async () => !(await labels(name)).includes('100'), `${name} follows the slider`);
    assert.ok((await labels('Loss')).includes('300'));
  });
});

test('x is shown in another measure', async () => {
  await visit(samplePage, {}, async (page) => {
    const labels = async () => (await texts(figure(page, 'Loss').locator('.chart svg text'))).join(' ');
    assert.match(await labels(), /step/);
    await page.getByRole('button', { name: 'hours since the launch' }).click();
    assert.match(await labels(), /hours since the launch/);
    await hover(page, figure(page, 'Degree').locator('.chart'), 36.5 / 125);
    assert.match(await figure(page, 'Degree').locator('.tooltip').textContent(), /failure/);
  });
});

test('light and dark', async () => {
  await visit(samplePage, { colorScheme: 'dark' }, async (page) => {
    const background = () => page.evaluate(() => getComputedStyle(document.documentElement).backgroundColor);
    const chart = page.locator('.chart').first();
    const dark = [await background(), await variable(page, '--series-0')];
    assert.ok((await colours(chart)).includes(dark[1]));
    await page.emulateMedia({ colorScheme: 'light' });
    const light = [await background(), await variable(page, '--series-0')];
    assert.equal(light[0], 'rgb(255, 255, 255)');
    assert.notEqual(light[1], dark[1]);
    await eventually(async () => (await colours(chart)).includes(light[1]), 'the chart becomes light');
    assert.ok(!(await colours(chart)).includes(dark[1]));
  });
});

test('print', async () => {
  await visit(samplePage, { colorScheme: 'dark' }, async (page) => {
    await page.evaluate(() => window.addEventListener('beforeprint', () => {
      window.printed = [...document.querySelectorAll('.chart svg')].map((svg) => Number(svg.getAttribute('width')));
    }));
    const pdf = await page.pdf({ format: 'A4', printBackground: true });
    const pages = pdf.toString('latin1').match(/\/Type\s*\/Page\b/g) ?? [];
    assert.ok(pages.length >= 3 && pages.length <= 8, `${pages.length} pages`);
    const printed = await page.evaluate(() => window.printed);
    assert.equal(printed.length, chartsOf(sample).length);
    assert.ok(printed.every((width) => width > 600 && width <= 680), `drawn at ${printed}`);
    const drawnIn = async (colour) => (await colours(page.locator('.chart').first())).includes(colour);
    const dark = await variable(page, '--series-0');
    await eventually(() => drawnIn(dark), 'dark again');
    await page.emulateMedia({ media: 'print' });
    assert.equal(await variable(page, '--paper'), '#ffffff');
    const light = await variable(page, '--series-0');
    assert.notEqual(light, dark);
    await eventually(() => drawnIn(light), 'light on paper');
    assert.ok(!await page.getByRole('button', { name: /CSV/ }).first().isVisible());
    assert.ok(await page.getByRole('button', { name: 'DP-DROP' }).isVisible(), 'legends are printed');
  });
});

test('a phone needs no scrolling to the side', async () => {
  for (const file of [samplePage, runPage])
    await visit(file, { viewport: { width: 360, height: 800 } }, async (page) => {
      assert.ok(await page.evaluate(() => document.documentElement.scrollWidth) <= 360);
      for (const svg of await page.locator('.chart svg').all())
        assert.ok((await svg.boundingBox()).width <= 360);
    });
});

test('tables and charts are saved as CSV', async () => {
  await visit(samplePage, {}, async (page) => {
    const save = async (button) => {
      const [download] = await Promise.all([page.waitForEvent('download'), button.click()]);
      return readFileSync(await download.path(), 'utf8').split('\r\n');
    };
    const table = await save(page.locator('.table .csv').first());
    assert.equal(table[2], 'NTP,2.98765,16.25,"two replicas, ""whole"""');
    const chart = await save(figure(page, 'Goodput by policy').locator('.csv'));
    assert.equal(chart[0], 'series,category,"goodput, %",low,high');
    assert.equal(chart[1], 'packed,restart from checkpoint,80,78,83');
  });
});

test('a training run', async () => {
  await visit(runPage, {}, async (page) => {
    assert.equal(await page.locator('.chart').count(), 8);
    assert.deepEqual(await texts(page.getByRole('heading', { level: 3 })),
      ['Loss', 'Throughput', 'Time of a step', 'TP degree', 'Power limit', 'Samples', 'Busy time']);
    const events = (await texts(page.locator('section').last().locator('tbody tr'))).join('\n');
    assert.match(events, /10\S*failurereplica 1 slot 2 lost in backward \(signal 9, Killed\)/);
    assert.match(events, /recoveredreplica 1 goes on as TP3/);
    assert.match(events, /rejoinedreplica 1 slot 2 is back/);
    const seconds = (await texts(page.locator('section').first().locator('tbody td:nth-child(2)'))).map(Number);
    const total = seconds.pop();
    assert.ok(total > 0 && Math.abs(seconds.reduce((a, b) => a + b) - total) < 0.01, `${seconds} make ${total}`);
    assert.ok(seconds[2] > 0 && seconds[3] > 0, 'work was lost, and recovery took time');
  });
});

/** Texts of charts that reach out of them, where they would be cut off. */
const cutOff = (page) => page.locator('.chart svg').evaluateAll((charts) => charts.flatMap((svg) => {
  const { left, right } = svg.getBoundingClientRect();
  return [...svg.querySelectorAll('text')].filter((text) => {
    const box = text.getBoundingClientRect();
    return box.left < left || box.right > right;
  }).map((text) => text.textContent);
}));

test('studies', async () => {
  for (const kind of ['throughput', 'goodput', 'domains']) {
    const out = join(folder, kind);
    execFileSync(command, ['sim', '--scenario', join(dirname(config), 'sim', `${kind}.yaml`), '--out', out,
      '--set', 'study.samples=1000', '--set', 'study.histories=5']);
    await visit(join(out, 'report.html'), {}, async (page) => {
      assert.deepEqual(await cutOff(page), [], kind);
      assert.match((await texts(page.locator('.lead'))).join(), /ntp-pw: likewise, with raised power/);
      assert.ok((await texts(page.locator('.facts dd'))).every((value) => !value.includes(' %')), 'numbers keep their %');
    });
  }
});
