// Builds real bundles and writes, for every column of every generated line, what
// @jridgewell/trace-mapping answers, run by run:
//   <line> <first column> <source index|-> <line> <column> <name|>   (all from 1)
// usage: node answers.mjs FOLDER_OF_NODE_MODULES OUTPUT_FOLDER
import { createRequire } from 'node:module'
import { mkdirSync, writeFileSync, readFileSync } from 'node:fs'
import { join } from 'node:path'

const [, , modules, out] = process.argv
const require = createRequire(join(modules, 'x.js'))
const esbuild = require('esbuild')
const { minify } = require('terser')
const { TraceMap, AnyMap, originalPositionFor } = require('@jridgewell/trace-mapping')

function bundle(name, contents, minified) {
  const result = esbuild.buildSync({
    stdin: { contents, resolveDir: modules }, bundle: true, minify: minified, sourcemap: 'external', write: false,
    outfile: join(out, name + '.js'), define: { 'process.env.NODE_ENV': '"production"' }, logLevel: 'error',
  })
  const pick = suffix => result.outputFiles.find(f => f.path.endsWith(suffix)).text
  return { name, code: pick('.js'), map: pick('.js.map') }
}

async function terse({ name, code, map }) {
  const result = await minify({ [name + '.js']: code }, { sourceMap: { content: map, includeSources: true }, compress: { passes: 1 } })
  return { name: name + '.terser', code: result.code, map: result.map }
}

// Two maps in one index map, the second beginning in the middle of a line.
function indexed(a, b) {
  const lines = a.code.split('\n')
  const at = { line: lines.length - 1, column: lines[lines.length - 1].length }
  return {
    name: 'indexed', code: a.code + b.code,
    map: JSON.stringify({ version: 3, sections: [{ offset: { line: 0, column: 0 }, map: JSON.parse(a.map) }, { offset: at, map: JSON.parse(b.map) }] }),
  }
}

function answers({ name, code, map }) {
  const trace = new AnyMap(map)
  const rows = []
  code.split('\n').forEach((text, l) => {
    let last = ''
    for (let column = 0; column <= text.length; column++) {
      const p = originalPositionFor(trace, { line: l + 1, column })
      const row = p.line === null ? '-' : [p.source ?? 'null', p.line, p.column + 1, p.name ?? ''].join('\t')
      if (row !== last || column === text.length) rows.push(`${l + 1}\t${column + 1}\t${row}`)
      last = row
    }
  })
  writeFileSync(join(out, name + '.map'), map)
  writeFileSync(join(out, name + '.answers'), rows.join('\n') + '\n')
}

mkdirSync(out, { recursive: true })
const react = bundle('react', "import * as a from 'react'; import * as b from 'react-dom/client'; globalThis.x = [a, b]", true)
const three = bundle('three', "import * as t from 'three'; globalThis.x = t", true)
const plain = bundle('react-plain', "import * as a from 'react'; import * as b from 'react-dom/client'; globalThis.x = [a, b]", false)
for (const b of [react, three, plain, await terse(plain), indexed(react, three)]) answers(b)
