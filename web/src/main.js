// Builds the page from the description that src/report/report.c puts into it (src/report/report.h has its format).
import { create } from './elements.js';
import { Section } from './section.js';
import { onChange } from './theme.js';

const CONTENTS_FROM = 4; // sections

function createHeader({ title, subtitle, text = [], facts = [] }) {
  return create('header', {},
    create('h1', {}, title ?? 'Report'),
    ...(subtitle ? [create('p', { class: 'subtitle' }, subtitle)] : []),
    ...text.map((paragraph) => create('p', { class: 'lead' }, paragraph)),
    ...(facts.length ? [create('dl', { class: 'facts' }, ...facts.map((fact) =>
      create('div', {}, create('dt', {}, fact.name), create('dd', {}, String(fact.value).replaceAll(' %', '\u00a0%')))))] : []));
}

function createContents(sections) {
  return create('nav', { 'aria-label': 'Contents' }, create('ol', {}, ...sections.map((section) =>
    create('li', {}, create('a', { href: `#${section.element.id}` }, section.description.heading ?? '')))));
}

const description = JSON.parse(document.getElementById('description').textContent);
document.title = description.title ?? 'Report';
const sections = (description.sections ?? []).map((section, i) => new Section(section, `section-${i + 1}`));
document.querySelector('main').append(createHeader(description),
  ...(sections.length >= CONTENTS_FROM ? [createContents(sections)] : []), ...sections.map((section) => section.element));
for (const plot of sections.flatMap((section) => section.plots ?? []))
  plot.start();
onChange(() => sections.forEach((section) => section.draw()));
