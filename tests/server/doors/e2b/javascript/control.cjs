// The control plane through E2B's own client, pointed here by its three variables; prints JSON.
const assert = require("node:assert/strict");
const { Sandbox, Template } = require("e2b");

const ALL = "0.0.0.0/0";

async function pagesOf(query) {
  const pages = Sandbox.list({ query, limit: 1 });
  const found = [];
  while (pages.hasNext) found.push(...(await pages.nextItems()).map((each) => each.sandboxId));
  return found;
}

async function messageOf(work) {
  try {
    await work();
  } catch (error) {
    return error.message;
  }
  return "";
}

async function main() {
  const sandbox = await Sandbox.create({ timeoutMs: 120_000, metadata: { "a x": "b&c" } });
  const info = await sandbox.getInfo();
  assert.equal(info.sandboxId, sandbox.sandboxId);
  assert.deepEqual(info.metadata, { "a x": "b&c" });
  assert.ok(await sandbox.isRunning());
  assert.deepEqual(await pagesOf({ metadata: { "a x": "b&c" } }), [sandbox.sandboxId]);
  assert.deepEqual(await pagesOf({ metadata: { "a x": "b" } }), []);

  await sandbox.setTimeout(60_000);
  assert.ok((await sandbox.getInfo()).endAt - Date.now() <= 60_000);

  assert.equal(await sandbox.pause(), true);
  assert.equal(await sandbox.pause(), false);
  assert.equal(await sandbox.isRunning(), false);
  const again = await Sandbox.connect(sandbox.sandboxId);
  assert.ok(await again.isRunning());

  await sandbox.updateNetwork({ allowOut: ["a.example"], denyOut: [ALL] });
  assert.deepEqual((await sandbox.getInfo()).network.allowOut, ["a.example"]);
  await sandbox.updateNetwork({ denyOut: ["8.8.8.8"] });
  assert.deepEqual((await sandbox.getInfo()).network.denyOut, ["8.8.8.8/32", "::/0"]);
  assert.equal((await sandbox.getMetrics()).length, 1);

  const snapshot = await sandbox.createSnapshot();
  const copy = await Sandbox.create(snapshot.snapshotId);
  assert.ok(await copy.isRunning());
  assert.equal(await Sandbox.deleteSnapshot(snapshot.snapshotId), true);
  assert.equal(await Sandbox.deleteSnapshot(snapshot.snapshotId), false);

  assert.equal(await Template.exists("base"), true);
  assert.equal(await Template.exists("none-such"), false);
  assert.match(await messageOf(() => Sandbox.create("none-such")), /template 'none-such' not found/);
  assert.match(
    await messageOf(() => Sandbox.create({ network: { allowPublicTraffic: true } })),
    /allowPublicTraffic/,
  );

  for (const each of [sandbox, copy]) assert.equal(await each.kill(), true);
  assert.equal(await sandbox.kill(), false);
  assert.equal(await sandbox.isRunning(), false);
  console.log("done");
}

main().catch((error) => {
  console.error(error);
  process.exitCode = 1;
});
