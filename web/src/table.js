// Tables: numbers to the right, with the same decimals down a column; a wide one scrolls by itself.
import { create, createCsvButton } from './elements.js';
import { columnFormat } from './format.js';

export function createTable({ columns, rows }, name) {
  const heads = columns.map((column) => (typeof column === 'string' ? { name: column } : column));
  const formats = heads.map((head, i) => columnFormat(rows.map((row) => row[i]), head.digits));
  const numeric = heads.map((_, i) => rows.some((row) => typeof row[i] === 'number'));
  const table = create('table', {},
    create('caption', { class: 'unseen' }, name),
    create('thead', {}, create('tr', {}, ...heads.map((head, i) =>
      create('th', { scope: 'col', ...(numeric[i] && { class: 'number' }) }, head.name)))),
    create('tbody', {}, ...rows.map((row) => create('tr', {}, ...heads.map((_, i) => {
      const value = row[i] ?? '';
      return typeof value === 'number'
        ? create('td', { class: 'number' }, formats[i](value))
        : create('td', numeric[i] ? { class: 'number' } : {}, String(value));
    })))));
  return create('div', { class: 'table' },
    create('div', { class: 'scroll', role: 'region', tabindex: '0', 'aria-label': `Table: ${name}` }, table),
    createCsvButton(name, () => [heads.map((head) => head.name), ...rows]));
}
