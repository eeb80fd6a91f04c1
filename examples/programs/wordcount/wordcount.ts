import { readFileSync } from 'node:fs';

const counts = new Map<string, number>();
for (const word of readFileSync(0, 'utf8').match(/\S+/g) ?? []) {
  counts.set(word, (counts.get(word) ?? 0) + 1);
}
for (const word of [...counts.keys()].sort()) console.log(word, counts.get(word));
