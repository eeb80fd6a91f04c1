// `tools` for JavaScript: promises whose work is done on the host. Sent along with the first cell
// that has some. A call goes out on the pipe of the driver's answers, what becomes of it comes on
// one that is open only while a call waits; the process above us takes both to init. No checking
// but what spares a trip: code here can write to both pipes without us, and the host knows that.
(function (say) {
'use strict';
const fs = require('fs');
const net = require('net');
const ANY = '(**arguments)';
let current = null;
let known = null;

class ToolError extends Error {
  constructor(message, tool = '', kind = 'raised', type = '') {
    super(message);
    Object.assign(this, { tool, kind, type });
  }
}
Object.defineProperty(ToolError.prototype, 'name', { value: 'ToolError', configurable: true });

function failure(tool, { kind, type, message }) {
  const shown = type && message ? `${type}: ${message}` : type || message;
  return new ToolError(`${tool}: ${shown}`, tool, kind, type);
}

class Calls {
  constructor({ functions, at_once: atOnce, replies }) {
    Object.assign(this, { functions, atOnce, replies, count: 0, text: [], socket: null });
    this.waiting = new Map();
    this.queue = [];
  }

  begin(tool, given) {
    return new Promise((resolve, reject) => {
      const refuse = (kind, message) => reject(failure(tool, { kind, type: '', message }));
      if (current !== this) return refuse('ended', 'the execution is over');
      if (given.length > 1 || (given.length && Object(given[0]) !== given[0])) {
        return refuse('invalid', 'give its arguments as one object: { name: value }');
      }
      let body;
      try {
        body = JSON.stringify(given[0] ?? {});
      } catch (error) {
        return refuse('invalid', `arguments are not JSON: ${error.message}`);
      }
      const size = Buffer.byteLength(body ?? '');
      const most = this.functions[tool].bytes;
      if (!size) return refuse('invalid', 'arguments are not JSON');
      if (size > most) {
        return refuse('too_large', `${size} bytes of arguments; the limit is ${most}`);
      }
      this.queue.push({ tool, body, resolve, reject });
      this.next();
    });
  }

  next() {
    while (this.queue.length && this.waiting.size < this.atOnce) {
      const { body, ...call } = this.queue.shift();
      this.waiting.set(++this.count, call);
      this.socket ??= this.listen();
      say({ ev: 'call', call: this.count, tool: call.tool, body });
    }
    if (!this.waiting.size) this.hangUp();
  }

  listen() {
    const fd = fs.openSync(this.replies, 'r');
    const socket = new net.Socket({ fd, readable: true, writable: false });
    socket.setEncoding('utf8');
    socket.on('data', (text) => this.hear(text));
    socket.on('error', () => {}); // the execution's end says the rest
    return socket;
  }

  hangUp() {
    this.socket?.destroy();
    this.socket = null;
  }

  hear(text) {
    const lines = text.split('\n');
    while (lines.length > 1) {
      this.text.push(lines.shift());
      const { call, ok, body } = JSON.parse(this.text.join(''));
      this.text = [];
      const asked = this.waiting.get(call);
      this.waiting.delete(call);
      if (ok) asked?.resolve(body); else asked?.reject(failure(asked.tool, body));
    }
    this.text.push(lines[0]);
    this.next();
  }

  end() {
    const left = [...this.waiting.values(), ...this.queue];
    this.waiting.clear();
    this.queue = [];
    this.hangUp();
    for (const { tool, reject } of left) {
      reject(failure(tool, { kind: 'ended', type: '', message: 'the execution is over' }));
    }
  }
}

function functionsOf(functions) {
  const made = {};
  for (const [name, { head, doc }] of Object.entries(functions)) {
    // Looked up with each call: what a cell has kept works in the next one, too.
    const call = (...given) => current === null
      ? Promise.reject(new ToolError(`${name}: the execution is over`, name, 'ended'))
      : current.begin(name, given);
    Object.defineProperty(call, 'name', { value: name });
    call.toString = () => `${name}${head === ANY ? '({ … })' : head}${doc ? ` // ${doc}` : ''}`;
    made[name] = call;
  }
  return Object.freeze(made);
}

function define(name, value) {
  Object.defineProperty(globalThis, name, { value, writable: true, configurable: true });
}

function install(told) {
  current = new Calls(told);
  const text = JSON.stringify(told.functions);
  if (known === null || known.text !== text) known = { text, tools: functionsOf(told.functions) };
  define('tools', known.tools);
  define('ToolError', ToolError);
}

function takeAway() {
  if (known === null) return;
  if (globalThis.tools === known.tools) delete globalThis.tools;
  if (globalThis.ToolError === ToolError) delete globalThis.ToolError;
  known = null;
}

function end() {
  const over = current;
  current = null;
  over?.end();
}

return { install, takeAway, end };
})
