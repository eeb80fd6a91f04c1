// Runs JavaScript (and TypeScript) for a context: one request, one answer, state kept in between.
// Started by `interpreter.py` with the paths of two pipes. No pipe is open while caller code runs.
(function () {
'use strict';
// What a cell declares at its top level hides a global from everybody who looks it up there, so
// everything we use of them is taken now (`require` is taken away from there later on).
const root = globalThis;
const {
  Atomics, Array, Buffer, Error, Function, Int32Array, JSON, Map, Object, Promise, Reflect,
  SharedArrayBuffer, String, Symbol, SyntaxError,
  clearInterval, console, process, require, setImmediate, setInterval,
} = root;
const fs = require('fs');
const Module = require('module');
const path = require('path');
const util = require('util');
const vm = require('vm');

const [requests, answers, flavour] = process.argv.slice(1);
const real = {
  write: fs.writeSync, open: fs.openSync, close: fs.closeSync, read: fs.readSync, stat: fs.stat,
};
const MOST_LATE_MS = 20;
const MOST_TURNS = 10; // of timers, before Node.js looks at everything else once more
let interrupt = null;
let session = null;
let slots = null;
let streams = [];
let count = 0;
let typescript = null;
let toolbox = null;

function say(message) {
  const fd = real.open(answers, 'w');
  try {
    const data = Buffer.from(JSON.stringify(message) + '\n');
    for (let at = 0; at < data.length; ) at += real.write(fd, data, at);
  } finally {
    real.close(fd);
  }
}

// -- what a caller sees of values ----------------------------------------------------------

const PNG = Buffer.from([0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a]);

function bundleOf(value) {
  const bundle = { 'text/plain': util.inspect(value) };
  try {
    if (Buffer.isBuffer(value) && value.subarray(0, 8).equals(PNG)) {
      bundle['text/plain'] = `<PNG of ${value.length} bytes>`;
      bundle['image/png'] = value.toString('base64');
    } else if (value !== null && typeof value === 'object') {
      const own = value[Symbol.for('Jupyter.display')];
      if (typeof own === 'function') Object.assign(bundle, own.call(value));
    }
  } catch {
    // A form that fails must not hide the others.
  }
  return bundle;
}

function display(...values) {
  for (const value of values) say({ ev: 'display', kind: 'display', data: bundleOf(value) });
}

function report(error) {
  let name = 'Error', value = '', trace = '';
  try {
    if (util.types.isNativeError(error)) {
      name = String(error.name);
      value = String(error.message);
      trace = ownFrames(util.inspect(error, { breakLength: 80 }));
    } else {
      value = trace = `Uncaught ${util.inspect(error)}`;
    }
  } catch {
    value = trace = '<the error cannot be shown>';
  }
  real.write(2, `${trace}\n`);
  say({ ev: 'error', name, value, traceback: trace });
}

function ownFrames(text) {
  const ours = /^\s+at .*(node:inspector|\[eval|evalmachine|node:vm:|node:internal\/process\/task)/;
  const lines = text.split('\n');
  const first = lines.findIndex((line) => ours.test(line));
  if (first < 0) return text;
  return [...lines.slice(0, first), ...lines.slice(first).filter((l) => !/^\s+at /.test(l))]
    .join('\n');
}

// -- cells -----------------------------------------------------------------------------------

function prepareCells() {
  const inspector = require('inspector');
  session = new inspector.Session();
  session.connect();
  const hidden = new Map();
  const own = Module.createRequire(path.join(process.cwd(), 'cell.js'));
  process.argv = [process.execPath];
  forgetEnding();
  // What was printed before something is shown, or before the end, must be out by then.
  streams = [process.stdout, process.stderr];
  for (const stream of streams) stream._handle?.setBlocking?.(true);
  const define = (name, value) =>
    Object.defineProperty(root, name, { value, writable: true, configurable: true });
  define('require', own);
  define('display', display);
  define('__import', (what) => import(what));
  // The one way to get at a value that the inspector names by id only.
  define('__slot', function (value) { hidden.set('value', value); });
  session.post('Runtime.evaluate', { expression: '__slot' }, (_e, found) => {
    slots = { id: found.result.objectId, hidden };
  });
  delete root.__slot;
  process.on('SIGINT', () => { if (interrupt) interrupt(); });
  guardTimers();
  const late = (how) => (error) => real.write(2, `${how} ${ownFrames(util.inspect(error))}\n`);
  process.on('uncaughtException', late('Uncaught'));
  process.on('unhandledRejection', late('Uncaught (in promise)'));
}

// A loop in a timer's callback, or after waiting for a timer, is stopped by an interrupt like one in
// the cell itself: callbacks run inside a script with the watchdog, too. Node.js has no door for
// that, so its own pair of functions is made once more and wrapped. What comes straight from the
// kernel (a file read, a socket) is not covered.
function guardTimers() {
  const { emitWarning } = process;
  try {
    process.emitWarning = () => {}; // a cell's stderr is no place to say what this is not for
    const { internalBinding } = require('internal/test/binding');
    const { getTimerCallbacks, timerListQueue } = require('internal/timers');
    const { clearAsyncIdStack } = require('internal/async_hooks');
    const { setupTimers, getLibuvNow } = internalBinding('timers');
    const { processImmediate, processTimers } = getTimerCallbacks(() => process._tickCallback());
    const isDue = (now) => timerListQueue.peek()?.expiry <= now;
    isDue(getLibuvNow()); // or this is another Node.js, too

    // When the next one is due is what Node.js goes by from then on. What waited for one of them may
    // have set another, so that is asked at the very end.
    const processThem = (now) => {
      for (let turn = 0; turn < MOST_TURNS && isDue(now); turn++) {
        processTimers(now);
        process._tickCallback();
        now = getLibuvNow();
      }
      return processTimers(now);
    };
    const processThose = () => { processImmediate(); process._tickCallback(); };
    const guarded = (work, bare) => (now) => {
      let answer;
      if (interruptible(() => { answer = work(now); })) return answer;
      clearAsyncIdStack(); // what ended in the middle has left its own there
      if (interrupt) interrupt(); else real.write(2, 'interrupted\n');
      return bare(now);
    };
    setupTimers(guarded(processThose, processImmediate), guarded(processThem, processTimers));
  } catch {
    // Another Node.js: an interrupt ends what a cell does itself, as before.
  } finally {
    process.emitWarning = emitWarning;
  }
}

// Run `work` so that an interrupt ends it; false if one did.
function interruptible(work) {
  Object.defineProperty(root, '__begin', { value: work, configurable: true });
  try {
    vm.runInThisContext('{ const begin = __begin; delete globalThis.__begin; begin(); }',
      { breakOnSigint: true, displayErrors: false, filename: 'evalmachine' });
    return true;
  } catch (error) {
    if (error?.code !== 'ERR_SCRIPT_EXECUTION_INTERRUPTED') throw error;
    return false;
  }
}

function valueOf(remote) {
  if (remote.objectId === undefined) {
    if (remote.type === 'undefined') return undefined;
    if (remote.unserializableValue === undefined) return remote.value;
    return vm.runInThisContext(`(${remote.unserializableValue})`);
  }
  const ask = {
    functionDeclaration: 'function (value) { this(value); }',
    objectId: slots.id,
    arguments: [{ objectId: remote.objectId }],
  };
  session.post('Runtime.callFunctionOn', ask);
  const value = slots.hidden.get('value');
  slots.hidden.clear();
  session.post('Runtime.releaseObject', { objectId: remote.objectId });
  return value;
}

class Interrupted extends Error {}

function evaluate(source) {
  const expression = `${source}\n//# sourceURL=cell-${++count}`;
  let resolve, reject;
  const ended = new Promise((...both) => { [resolve, reject] = both; });
  // Node.js looks below, before anybody awaits it, for rejections that nobody handles.
  ended.catch(() => {});
  interrupt = () => reject(new Interrupted());
  const finished = (error, answer) => {
    if (error) reject(new Error(error.message));
    else if (answer.exceptionDetails) reject(new Thrown(answer.exceptionDetails));
    else resolve(valueOf(answer.result));
  };
  const begin = () => {
    const options = { expression, replMode: true, awaitPromise: true };
    session.post('Runtime.evaluate', options, finished);
  };
  try {
    // The watchdog that stops `while (true) {}` belongs to scripts, so the cell runs inside one.
    // What follows a first `await` of something that is there already runs in it as well.
    const isWhole = interruptible(() => {
      say({ ev: 'running' }); // an interrupt that came too early comes again after this
      begin();
      process._tickCallback();
    });
    if (!isWhole) reject(new Interrupted());
  } catch (error) {
    reject(error);
  }
  return ended;
}

class Thrown {
  constructor(details) {
    const remote = details.exception;
    this.error = remote === undefined ? new Error(details.text) : valueOf(remote);
    if (details.scriptId !== undefined && this.error instanceof SyntaxError) {
      const place = `cell-${count}:${details.lineNumber + 1}:${details.columnNumber + 1}`;
      this.error.stack = `${this.error.name}: ${this.error.message}\n    at ${place}`;
    }
  }
}

// An interrupt may end a script in the middle of a write, and its stream then waits for the end of
// that for ever: nothing more came out. Ours write at once, so nothing is on its way between cells.
function endWrites() {
  for (const { _writableState: state } of streams) {
    if (state?.writing) {
      state.bufferProcessing = false;
      state.onwrite();
    }
  }
}

async function cell(source, isDisplayed) {
  let raised = false;
  endWrites();
  const waiting = setInterval(() => {}, 2 ** 30); // or an empty loop would end the process
  try {
    const value = await evaluate(translated(source));
    interrupt = null;
    if (isDisplayed && value !== undefined) {
      say({ ev: 'display', kind: 'result', data: bundleOf(value) });
    }
  } catch (error) {
    interrupt = null;
    raised = true;
    if (error instanceof Interrupted) {
      real.write(2, 'interrupted\n');
      say({ ev: 'error', name: 'KeyboardInterrupt', value: '', traceback: 'interrupted' });
    } else {
      report(error instanceof Thrown ? error.error : error);
    }
  }
  clearInterval(waiting);
  toolbox?.end();
  say({ ev: 'done', raised });
}

// -- what the inspector's evaluation does not know: TypeScript, import and export ------------

function translated(source) {
  const script = flavour === 'typescript' ? transpiled(source) : source;
  return /\b(import|export)\b/.test(script) ? withoutModules(script) : script;
}

function transpiled(source) {
  typescript ??= require(typescriptPath());
  const { ScriptTarget, ModuleKind, transpileModule } = typescript;
  const output = transpileModule(source, {
    reportDiagnostics: true,
    fileName: `cell-${count + 1}.ts`,
    compilerOptions: {
      target: ScriptTarget.ES2022,
      module: ModuleKind.ESNext,
      isolatedModules: true,
      preserveValueImports: true,
      removeComments: false,
    },
  });
  const first = output.diagnostics[0];
  if (first === undefined) {
    return output.outputText.replace(/^export \{\};?\s*$/m, '').replace(/^"use strict";\s*/, '');
  }
  const text = typescript.flattenDiagnosticMessageText(first.messageText, '\n');
  const { line, character } = first.file.getLineAndCharacterOfPosition(first.start);
  const error = new SyntaxError(`${text} (TS${first.code})`);
  error.stack = `SyntaxError: ${error.message}\n    at ${first.file.fileName}:${line + 1}:${character + 1}`;
  throw error;
}

function typescriptPath() {
  // Debian's place, npm's global ones, and what is installed in the working directory.
  const places = ['/usr/share/nodejs', '/usr/local/lib/node_modules', '/usr/lib/node_modules'];
  const known = places.map((place) => `${place}/typescript`).find((each) => fs.existsSync(each));
  return known ?? require.resolve('typescript', { paths: [process.cwd()] });
}

function withoutModules(source) {
  let tree;
  try {
    const acorn = require('internal/deps/acorn/acorn/dist/acorn');
    tree = acorn.Parser.parse(source, {
      ecmaVersion: 'latest', sourceType: 'module', allowAwaitOutsideFunction: true,
    });
  } catch {
    return source; // V8 says what is wrong with it
  }
  const edits = [];
  collect(tree, edits, source);
  edits.sort((a, b) => b.start - a.start);
  for (const { start, end, text } of edits) source = source.slice(0, start) + text + source.slice(end);
  return source;
}

function collect(node, edits, source) {
  if (Array.isArray(node)) return node.forEach((each) => collect(each, edits, source));
  if (node === null || typeof node !== 'object') return;
  if (node.type === 'ImportExpression') {
    edits.push({ start: node.start, end: node.start + 'import'.length, text: '__import' });
  } else if (node.type === 'ImportDeclaration') {
    edits.push({ start: node.start, end: node.end, text: asAwait(node) });
    return;
  } else if (node.type === 'ExportNamedDeclaration' || node.type === 'ExportDefaultDeclaration') {
    edits.push({ start: node.start, end: node.declaration?.start ?? node.end, text: '' });
  }
  for (const [name, child] of Object.entries(node)) {
    if (name !== 'type') collect(child, edits, source);
  }
}

function asAwait(node) {
  const module = `await __import(${JSON.stringify(node.source.value)})`;
  const named = [];
  let text = '';
  for (const each of node.specifiers) {
    if (each.type === 'ImportNamespaceSpecifier') text += `const ${each.local.name} = ${module};`;
    else named.push(`${each.imported ? JSON.stringify(each.imported.name ?? each.imported.value) : 'default'}: ${each.local.name}`);
  }
  if (named.length) text += `const { ${named.join(', ')} } = ${module};`;
  return text || `${module};`;
}

// -- a program: what `node file` would do, in a process that is warm already ------------------

function program(file, options) {
  process.argv = [process.execPath, path.resolve(file), ...options.argv];
  process.execArgv = [];
  delete process._eval;
  ending.isAwaited = true;
  ending.saysLeaving = options.says_leaving;
  process.nextTick(Module.runMain); // called by nobody of ours, so that no stack shows us
}

// How a program ends. `isAwaited` from when there is one. Prepared before, because nobody waits then.
const ending = { isAwaited: false, isFatal: false, saysLeaving: false };

function tellWhatWasNotCaught(error) {
  ending.isFatal = true;
  const isError = util.types.isNativeError(error);
  say({
    ev: 'error',
    name: isError ? String(error.name) : 'Error',
    value: isError ? String(error.message) : util.inspect(error),
    traceback: isError ? String(error.stack) : util.inspect(error),
  });
}

// Node.js takes its heap apart before a program's own end, which costs as much as running a small
// one; `process.exit()` does not, and this is how both end. What was not caught is reported by
// Node.js after `exit` was emitted, so such a program ends the long way.
function prepareEnding() {
  const { emit, reallyExit } = process;
  const value = function (name, ...rest) {
    const answer = Reflect.apply(emit, this, [name, ...rest]);
    const isEnd = name === 'exit' && this === process && process._exiting;
    if (isEnd && ending.isAwaited && !ending.isFatal) {
      try {
        if (ending.saysLeaving) say({ ev: 'leaving' });
      } catch {
        // It is seen when it has left.
      }
      Reflect.apply(reallyExit, process, [process.exitCode ?? 0]);
    }
    return answer;
  };
  Object.defineProperty(process, 'emit', { value, writable: true, configurable: true });
  process.on('uncaughtExceptionMonitor', tellWhatWasNotCaught);
}

function forgetEnding() {
  delete process.emit;
  process.off('uncaughtExceptionMonitor', tellWhatWasNotCaught);
}

// What every program needs, loaded and compiled once before there is one: how it is asked for, its
// two streams, what prints, what finds and compiles a module and runs it. Nothing is printed, and
// nothing is kept.
function rehearse() {
  lineOf('/proc/self/comm').split('\t');
  serve(['rehearsal', '/dev/null', '-', '0', '-']);
  const { Writable } = require('stream');
  const sink = new Writable({ write(_data, _encoding, done) { done(); } });
  new console.Console(sink).log('%s', 1, [{ a: 1 }]);
  process.stdout.write('');
  process.stderr.write('');
  try { require('/nowhere/none.js'); } catch { /* finding nothing is what it is for */ }
  try { Module.runMain('/dev/null'); } catch { /* another Node.js: programs start cold */ }
  delete process.mainModule;
  delete Module._cache['/dev/null'];
}

// After a cell that was interrupted. A signal that found no script may be in Node.js's own pipe: two
// turns of the event loop, and its event has found no cell. One that came as a script ended may have
// left its watchdog a count too many, which would end the next script at once: so one waits for it.
// An interrupt that is meant for this cell comes once more after `running`.
async function settle() {
  for (let turn = 0; turn < 2; turn++) await new Promise((done) => real.stat('/', done));
  const nobody = new Int32Array(new SharedArrayBuffer(4));
  interruptible(() => Atomics.wait(nobody, 0, 0, MOST_LATE_MS));
}

// -- requests ----------------------------------------------------------------------------------

function takeStdin(place) {
  real.close(0);
  real.open(place === '-' ? '/dev/null' : place, 'r'); // the lowest free number: 0
}

function renewStdin() {
  let stream = null;
  Object.defineProperty(process, 'stdin', {
    configurable: true,
    enumerable: true,
    get() {
      stream ??= fs.createReadStream(null, { fd: 0, autoClose: false });
      return stream;
    },
  });
}

function oneLine(fd, done) {
  let text = '';
  const room = Buffer.alloc(4096);
  const more = () => fs.read(fd, room, 0, room.length, null, (error, size) => {
    if (error || !size) process.exit(0); // nobody is there to work for
    text += room.toString('utf8', 0, size);
    if (text.endsWith('\n')) done(text.slice(0, -1)); else more();
  });
  more();
}

function next() {
  const fd = real.open(requests, 'r');
  oneLine(fd, (line) => {
    real.close(fd);
    serve(line.split('\t'));
  });
}

function offerTools(place) {
  if (place === '-') {
    toolbox?.takeAway();
    return;
  }
  const told = JSON.parse(fs.readFileSync(place, 'utf8'));
  toolbox ??= new Function('require', `return (\n${told.code}\n)`)(require)(say);
  toolbox.install(told);
}

async function serve([kind, source, stdin, isDisplayed, tools]) {
  offerTools(tools);
  if (kind === 'rehearsal') {
    fs.readFileSync(source, 'utf8');
    return;
  }
  if (kind === 'program') {
    const options = JSON.parse(fs.readFileSync(source, 'utf8'));
    if (stdin !== '-') takeStdin(stdin);
    program(options.filename, options);
    return;
  }
  if (session === null) prepareCells();
  takeStdin(stdin);
  renewStdin();
  if (kind === 'late') await settle();
  await cell(fs.readFileSync(source, 'utf8'), isDisplayed === '1');
  next();
}

// The first one may ask for a program, and then nothing else may be under way: it is waited for here.
function lineOf(place) {
  const fd = real.open(place, 'r');
  const room = Buffer.alloc(4096);
  let text = '';
  while (!text.endsWith('\n')) {
    const size = real.read(fd, room);
    if (!size) process.exit(0);
    text += room.toString('utf8', 0, size);
  }
  real.close(fd);
  return text.slice(0, -1);
}

if (flavour === 'typescript') {
  try {
    typescript = require(typescriptPath());
  } catch {
    say({ ev: 'missing', what: 'typescript' });
    process.exit(1);
  }
}
rehearse();
prepareEnding();
// `-e` gives these back when the driver itself is done; what it did by then is not to be waited for.
setImmediate(() => {
  for (const name of ['require', 'module', 'exports', '__filename', '__dirname']) {
    delete root[name];
  }
  say({ ev: 'ready' });
  serve(lineOf(requests).split('\t'));
});
})();
