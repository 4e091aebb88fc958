// Tables: numbers to the right, with the same decimals down a column; a wide one scrolls by itself.
import { create, createCsvButton } from './elements.js';
import { columnFormat } from './format.js';

const SHORT_LENGTH = 24; // a column of such texts has one line a row

export function createTable({ columns, rows }, name) {
  const heads = columns.map((column) => (typeof column === 'string' ? { name: column } : column));
  const formats = heads.map((head, i) => columnFormat(rows.map((row) => row[i]), head.digits));
  const classes = heads.map((_, i) => {
    if (rows.some((row) => typeof row[i] === 'number'))
      return { class: 'number' };
    return rows.every((row) => String(row[i] ?? '').length <= SHORT_LENGTH) ? { class: 'short' } : { class: 'long' };
  });
  const table = create('table', {},
    create('caption', { class: 'unseen' }, name),
    create('thead', {}, create('tr', {}, ...heads.map((head, i) =>
      create('th', { scope: 'col', ...classes[i] }, head.name)))),
    create('tbody', {}, ...rows.map((row) => create('tr', {}, ...heads.map((_, i) => {
      const value = row[i] ?? '';
      return create('td', classes[i], typeof value === 'number' ? formats[i](value) : String(value));
    })))));
  return create('div', { class: 'table' },
    create('div', { class: 'scroll', role: 'region', tabindex: '0', 'aria-label': `Table: ${name}` }, table),
    createCsvButton(name, () => [heads.map((head) => head.name), ...rows]));
}
