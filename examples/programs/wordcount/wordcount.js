const fs = require('fs');

const counts = new Map();
for (const word of fs.readFileSync(0, 'utf8').match(/\S+/g) ?? []) {
  counts.set(word, (counts.get(word) ?? 0) + 1);
}
for (const word of [...counts.keys()].sort()) console.log(word, counts.get(word));
