// Runs a program with `arguments`, and leaves the value of `main(arguments)` or of `result`.
//
// What is no script is a module: it can say what its `main` and `result` are only itself.
"use strict";
const fs = require("fs");
const path = require("path");
const vm = require("vm");
const { createRequire } = require("module");
const { pathToFileURL } = require("url");

const MODULE = /\b(?:await|import|export)\b/;
const FOOTER = `
;Object.assign(globalThis, { main: typeof main === "function" ? main : undefined,
  result: typeof result === "undefined" ? undefined : result });`;

const target = path.resolve(process.env.CELLWALL_RESULT);
const file = path.resolve(process.argv[2]);
process.argv.splice(1, 2, file);
const own = createRequire(file);
const exported = { exports: {} };
Object.assign(globalThis, {
  arguments: JSON.parse(fs.readFileSync(process.env.CELLWALL_ARGUMENTS, "utf8")),
  require: own,
  module: exported,
  exports: exported.exports,
  __filename: file,
  __dirname: path.dirname(file),
});

const source = fs.readFileSync(file, "utf8");
const compiled = path.join(path.dirname(file), "main.mjs"); // a module that its compiler made
const IMPORTS = 'import("./main.mjs");';

function asScript() {
  if (source === IMPORTS) return undefined;
  try {
    return new vm.Script(source, { filename: file });
  } catch (error) {
    if (!MODULE.test(source)) throw error;
    return undefined;
  }
}

async function importModule() {
  if (source === IMPORTS) return import(pathToFileURL(compiled));
  const copy = path.join(path.dirname(file), `.cellwall-${process.pid}.mjs`);
  fs.writeFileSync(copy, source + FOOTER);
  try {
    return await import(pathToFileURL(copy));
  } finally {
    fs.rmSync(copy);
  }
}

function call() {
  return vm.runInThisContext(
    'typeof main === "function" ? main(globalThis.arguments)' +
      ' : typeof result === "undefined" ? undefined : result',
  );
}

const script = asScript();
if (script !== undefined) script.runInThisContext();
const value = script === undefined ? importModule().then(call) : call();
Promise.resolve(value).then((settled) => {
  if (settled !== undefined) fs.writeFileSync(target, JSON.stringify(settled));
});
