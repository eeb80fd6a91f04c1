// What any release of E2B's JavaScript SDK from 2.8 on can do; the three variables say where.
// Arguments name the parts: plain, interpreter.
const assert = require('node:assert')
const { Sandbox: Plain } = require('e2b')
const { Sandbox } = require('@e2b/code-interpreter')

async function plain() {
  const sandbox = await Plain.create({
    timeoutMs: 60_000, metadata: { kind: 'a b' }, envs: { FROM: 'create' },
  })
  assert.ok(await sandbox.isRunning())
  assert.equal((await sandbox.commands.run('echo $FROM')).stdout, 'create\n')
  await sandbox.files.write('folder/text', 'kept')
  assert.equal(await sandbox.files.read('folder/text'), 'kept')
  assert.deepEqual((await sandbox.files.list('folder')).map((each) => each.name), ['text'])
  await sandbox.setTimeout(120_000)
  assert.equal((await sandbox.getInfo()).metadata.kind, 'a b')
  const again = await Plain.connect(sandbox.sandboxId)
  assert.ok(await again.files.exists('folder/text'))
  await again.kill()
  assert.ok(!(await sandbox.isRunning()))
}

async function interpreter() {
  const sandbox = await Sandbox.create()
  await sandbox.runCode('x = 41')
  assert.equal((await sandbox.runCode('x + 1')).text, '42')
  assert.equal((await sandbox.runCode('1 / 0')).error.name, 'ZeroDivisionError')
  const context = await sandbox.createCodeContext({ cwd: '/tmp' })
  assert.equal((await sandbox.runCode('import os; os.getcwd()', { context })).text, '/tmp')
  await sandbox.kill()
}

async function all(parts) {
  for (const part of parts) await { plain, interpreter }[part]()
}

all(process.argv.slice(2)).then(() => console.log('done'), (error) => {
  console.error(error)
  process.exit(1)
})
