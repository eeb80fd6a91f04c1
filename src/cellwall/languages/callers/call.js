// Runs a program with `arguments`, and leaves the value of `main(arguments)` or of `result`.
"use strict";
const fs = require("fs");
const path = require("path");
const vm = require("vm");
const { createRequire } = require("module");

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
vm.runInThisContext(fs.readFileSync(file, "utf8"), { filename: file });
const value = vm.runInThisContext(
  'typeof main === "function" ? main(globalThis.arguments)' +
    ' : typeof result === "undefined" ? undefined : result',
);
Promise.resolve(value).then((settled) => {
  if (settled !== undefined) fs.writeFileSync(target, JSON.stringify(settled));
});
