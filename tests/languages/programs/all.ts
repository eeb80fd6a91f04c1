import * as fs from "fs";
import * as net from "net";
import { spawn } from "child_process";

const [name, ...rest]: string[] = process.argv.slice(2);
const cases: Record<string, () => unknown> = {
  echo: () => process.stdout.write(fs.readFileSync(0)),
  words: () => rest.forEach((word: string) => console.log(word)),
  text: () => console.log("grüße 你好 🙂"),
  leave: () => process.exit(3),
  wait: () => setInterval(() => {}, 1000),
  spin: () => { for (;;); },
  hog: () => { const held: Buffer[] = []; for (;;) held.push(Buffer.alloc(1 << 20, 1)); },
  bomb: () => {
    for (let i = 0; i < 1000; i++) {
      const child = spawn("sleep", ["60"]).on("error", () => {});
      if (child.pid === undefined) process.exit(1);
    }
  },
  flood: () => { for (let i = 0; i < 100000; i++) console.log("a line of output"); },
  file: () => {
    fs.writeFileSync("note.txt", "kept\n");
    process.stdout.write(fs.readFileSync("note.txt"));
  },
  connect: () => {
    const socket = net.connect(Number(rest[0]), "127.0.0.1", () => {
      console.log("connected");
      socket.destroy();
    });
  },
};
cases[name]();
