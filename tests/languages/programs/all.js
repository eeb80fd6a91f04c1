const fs = require("fs");
const [name, ...rest] = process.argv.slice(2);
const cases = {
  echo: () => process.stdout.write(fs.readFileSync(0)),
  words: () => rest.forEach((word) => console.log(word)),
  text: () => console.log("grüße 你好 🙂"),
  leave: () => process.exit(3),
  wait: () => setInterval(() => {}, 1000),
  spin: () => { for (;;); },
  hog: () => { const held = []; for (;;) held.push(Buffer.alloc(1 << 20, 1)); },
  bomb: () => {
    for (let i = 0; i < 1000; i++) {
      const child = require("child_process").spawn("sleep", ["60"]).on("error", () => {});
      if (child.pid === undefined) process.exit(1);
    }
  },
  flood: () => { for (let i = 0; i < 100000; i++) console.log("a line of output"); },
  file: () => {
    fs.writeFileSync("note.txt", "kept\n");
    process.stdout.write(fs.readFileSync("note.txt"));
  },
  connect: () => {
    const socket = require("net").connect(Number(rest[0]), "127.0.0.1", () => {
      console.log("connected");
      socket.destroy();
    });
  },
};
cases[name]();
