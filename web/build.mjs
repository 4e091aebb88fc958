// Bundles the page: node build.mjs OUTPUT, in a folder where `npm ci` has been run. OUTPUT is one HTML file with
// @DESCRIPTION@ where the description of a report goes.
import { readFileSync, writeFileSync } from 'node:fs';
import { buildSync } from 'esbuild';

function bundle(entry) {
  const result = buildSync({
    entryPoints: [entry],
    bundle: true,
    minify: true,
    format: entry.endsWith('.js') ? 'iife' : undefined,
    target: ['es2020'],
    charset: 'utf8',
    legalComments: 'none', // the licences stand in web/README.md
    write: false,
  });
  return result.outputFiles[0].text.trim();
}

const page = readFileSync('page.html', 'utf8')
  .replace('/*STYLE*/', () => bundle('src/page.css'))
  .replace('/*SCRIPT*/', () => bundle('src/main.js'));
if (page.split('@DESCRIPTION@').length !== 2)
  throw new Error('the page must hold @DESCRIPTION@ exactly once');
writeFileSync(process.argv[2], page);
