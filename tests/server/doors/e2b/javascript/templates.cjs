// Builds a template and makes a sandbox of it, by the variables alone. IMAGE: what it begins with.
const assert = require("node:assert");
const fs = require("node:fs");
const os = require("node:os");
const path = require("node:path");
const { Sandbox, Template } = require("e2b");

async function main() {
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), "e2b-templates-"));
  fs.writeFileSync(path.join(folder, "file"), "of the client");
  fs.symlinkSync("file", path.join(folder, "link"));
  const name = "by-javascript";
  const logs = [];
  const template = Template({ fileContextPath: folder })
    .fromImage(process.env.IMAGE)
    .copy("link", "/srv/app/", { resolveSymlinks: true, forceUpload: true })
    .setWorkdir("/srv/app")
    .runCmd("cat link > said; echo told");
  const built = await Template.build(template, `${name}:v1`, {
    memoryMB: 384,
    cpuCount: 1,
    onBuildLogs: (entry) => logs.push(entry.message),
  });
  assert.ok(logs.includes("told"), logs.join("\n"));
  assert.ok(await Template.exists(name));
  const tags = await Template.getTags(name);
  assert.deepStrictEqual(tags.map((each) => [each.tag, each.buildId]), [["v1", built.buildId]]);
  const sandbox = await Sandbox.create(`${name}:${built.buildId}`, { timeoutMs: 60_000 });
  assert.strictEqual((await sandbox.commands.run("cat said; pwd")).stdout, "of the client/srv/app\n");
  await sandbox.kill();
  await assert.rejects(
    Template.build(Template().fromImage(process.env.IMAGE).runCmd("exit 3"), "by-javascript"),
    /failed to run command 'exit 3': command failed: exit status 3/
  );
  fs.rmSync(folder, { recursive: true });
  console.log("done");
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
