// Elements of the page. Text is set as text, never as HTML: what a report says cannot become part of the page.

/** create('p', {class: 'note'}, 'text', child, …) */
export function create(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes))
    element.setAttribute(key, value);
  element.append(...children);
  return element;
}

const SVG = 'http://www.w3.org/2000/svg';

export function createSvg(name, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes))
    element.setAttribute(key, value);
  element.append(...children);
  return element;
}

export function createButton(text, act, attributes = {}) {
  const button = create('button', { type: 'button', ...attributes }, ...[text].flat());
  button.addEventListener('click', act);
  return button;
}

function quote(value) {
  const text = value === null || value === undefined ? '' : String(value);
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

/** A button that saves rows (the first one names the columns), made when it is pressed, as a CSV file. */
export function createCsvButton(name, rows) {
  return createButton('CSV', () => {
    const text = rows().map((row) => row.map(quote).join(',') + '\r\n').join('');
    const address = URL.createObjectURL(new Blob([text], { type: 'text/csv' }));
    create('a', { href: address, download: `${name.replace(/[^\p{L}\p{N}]+/gu, '-') || 'table'}.csv` }).click();
    setTimeout(() => URL.revokeObjectURL(address), 10000);
  }, { class: 'csv', 'aria-label': `Download ${name} as CSV`, title: 'Download as CSV' });
}
