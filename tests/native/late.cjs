// Loaded into node before node_runner.mjs (NODE_OPTIONS=--require): real reads of a file, whose answers come late, in
// another order, in pieces, or not at all. LATE says how:
//   random     each answer some turns of the event loop after the read, drawn anew
//   reversed   of those that are under way the latest is answered first
//   short      no read brings more than 1000 bytes
//   once       the fifth read that can be answered late is answered with an error, and only that
//   never N    so is every one that has byte N of the file in it
// What was seen goes into the file LATE_SEEN: reads, most at once, answers that passed an older one's.
"use strict";
const fs = require("node:fs");
const { syncBuiltinESMExports } = require("node:module");

const [how, byte] = process.env.LATE.split(" ");
const plain = fs.read, held = [];
let state = 1, reads = 0, under = 0, most = 0, passed = 0, oldest = [];

function draw(most) {
  state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
  return (state >>> 16) % (most + 1);
}

function answer({ number, callback, error, n }) {
  under--;
  oldest = oldest.filter((other) => other !== number);
  if (oldest.some((other) => other < number)) passed++;
  callback(error, n);
}

// One turn of the event loop: what is due is answered.
function look() {
  if (how === "reversed") {
    if (held.length === under || held[0].turns-- === 0) answer(held.sort((a, b) => b.number - a.number).shift());
  } else {
    const due = held.filter((one) => one.turns-- === 0);
    for (const one of due) {
      held.splice(held.indexOf(one), 1);
      answer(one);
    }
  }
  if (held.length > 0) setImmediate(look);
}

fs.read = (file, room, at, bytes, offset, callback) => {
  const number = reads++, wanted = how === "short" ? Math.min(bytes, 1000) : bytes;
  const bad = how === "once" ? number === 4
    : how === "never" && BigInt(byte) >= offset && BigInt(byte) < offset + BigInt(bytes);
  under++;
  oldest.push(number);
  most = Math.max(most, under);
  plain(file, room, at, wanted, offset, (error, n) => {
    held.push({ number, callback, error: bad ? new Error("EIO: played") : error, n, turns: draw(9) });
    if (held.length === 1) setImmediate(look);
  });
};
syncBuiltinESMExports();
process.on("exit", () => fs.writeFileSync(process.env.LATE_SEEN, `${reads} ${most} ${passed}\n`));
