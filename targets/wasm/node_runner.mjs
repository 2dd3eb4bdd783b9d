// Runs a job (targets/runner/runner.h) in a Colibri module with node and prints its report.
//   node node_runner.mjs MODULE JOB BLOB
// MODULE is a .wasm file, or the folder of all three: then the module of the job's kernel level, or the best one that
// this engine accepts and computes right.
//   node node_runner.mjs FOLDER
// prints the numbers of the kernel levels whose modules can run here.
// The exit code is the job's; 64: wrong command line, 66: a file cannot be read, 70: trap, 71: no memory,
// 72: the engine refuses the module.
import { openSync, fstatSync, read, readSync, readFileSync, statSync, writeSync } from "node:fs";
import { join } from "node:path";

const PAGE = 65536, CHUNK = 1 << 24, REGION_BYTES_AT = 24, KERNEL_AT = 136, HEAD_BYTES_AT = 224;
const SEND_BYTES = 8192, SEND_MS = 50, OK = 0, DONE = 1, ERROR_FETCH = -17, WAITING = 2;
// the best first, with its colibri_kernel of colibri.h
const MODULES = [["colibri_relaxed.wasm", 8], ["colibri_simd128.wasm", 7], ["colibri.wasm", 1]];
const round64 = (n) => Math.ceil(n / 64) * 64;

function fail(code, text) {
  process.stderr.write(`node_runner: ${text}\n`);
  process.exit(code);
}

// The module's one function import, env.colibri_store: here where the job says that only the head of the blob is in
// memory. The file is read straight into it, any number of reads at once, while the module goes on with what it has; it
// is told between two turns what has arrived. A read that ends early goes on where it ended.
let file = -1, memory = null, inFlight = 0, arrived = [], wake = null;

function store(offset, bytes, to, ticket) {
  const room = new Uint8Array(memory.buffer, to >>> 0, bytes);
  const end = (status) => {
    inFlight--;
    arrived.push([ticket, status]);
    if (wake !== null) wake();
  };
  const next = (done) => read(file, room, done, bytes - done, offset + BigInt(done), (error, n) => {
    if (error || n === 0) end(ERROR_FETCH);
    else if (done + n < bytes) next(done + n);
    else end(DONE);
  });
  inFlight++;
  next(0);
  return OK;
}

// Tell the module what has arrived. With nothing else to do it waits for the next; else it only lets node look.
async function deliver(idle) {
  if (idle && arrived.length === 0 && inFlight > 0) await new Promise((resolve) => { wake = resolve; });
  else if (inFlight > 0) await new Promise((resolve) => { setImmediate(resolve); });
  wake = null;
  for (const [ticket, status] of arrived.splice(0)) colibri.colibri_runner_arrived(ticket, status);
}

const imports = (room) => ({ env: { memory: room, colibri_store: store } });

// Read a file, or so many bytes of it, into the module's memory, without a second copy of it.
function place(path, memory, at, bytes) {
  const file = openSync(path, "r");
  for (let done = 0; done < bytes;) {
    const n = readSync(file, new Uint8Array(memory.buffer, at + done, Math.min(CHUNK, bytes - done)));
    if (n === 0) fail(66, `${path} ends early`);
    done += n;
  }
}

// The module at a path, or null if this engine does not take it or answers its known vectors wrongly.
function usable(path) {
  const bytes = readFileSync(path);
  if (!WebAssembly.validate(bytes)) return null;
  const module = new WebAssembly.Module(bytes);
  const { exports } = new WebAssembly.Instance(module, imports(new WebAssembly.Memory({ initial: 64 })));
  return exports.colibri_runner_engine_fits() === 1 ? { module, heap: exports.__heap_base.value } : null;
}

// Of the folder's modules the one of a kernel level, else the first that is usable.
function choose(path, kernel) {
  if (!statSync(path).isDirectory()) return usable(path);
  const named = MODULES.filter(([, level]) => level === kernel);
  for (const [name] of named.length > 0 ? named : MODULES) {
    const found = usable(join(path, name));
    if (found !== null) return found;
  }
  return null;
}

const [modulePath, jobPath, blobPath] = process.argv.slice(2);
if (modulePath !== undefined && jobPath === undefined) {
  const can = MODULES.filter(([name]) => usable(join(modulePath, name)) !== null);
  writeSync(1, can.map(([, level]) => `${level}\n`).join(""));
  process.exit(0);
}
if (blobPath === undefined) fail(64, "usage: node node_runner.mjs MODULE JOB BLOB");

let chosen, jobBytes, blobBytes, regionBytes;
try {
  const job = readFileSync(jobPath);
  chosen = choose(modulePath, job.readUInt32LE(KERNEL_AT));
  jobBytes = job.length;
  regionBytes = Number(job.readBigUInt64LE(REGION_BYTES_AT));
  file = openSync(blobPath, "r");
  blobBytes = Number(job.readBigUInt64LE(HEAD_BYTES_AT)) || fstatSync(file).size;
} catch (error) {
  fail(66, error.message);
}

if (chosen === null) fail(72, `${modulePath}: node ${process.version} does not take this module`);

// The module's own data ends at __heap_base, which a first instance has told.
const { module, heap } = chosen;
const jobAt = round64(heap), blobAt = round64(jobAt + jobBytes), regionAt = round64(blobAt + blobBytes);
try {
  memory = new WebAssembly.Memory({ initial: Math.ceil((regionAt + regionBytes) / PAGE) });
} catch (error) {
  fail(71, `no memory of ${regionAt + regionBytes} bytes: ${error.message}`);
}
const colibri = new WebAssembly.Instance(module, imports(memory)).exports;
place(jobPath, memory, jobAt, jobBytes);
place(blobPath, memory, blobAt, blobBytes);

// What was reported is held for a moment: a write for every token would be a noticeable part of a fast token.
let waiting = [], held = 0, sent = performance.now();

function send() {
  const bytes = Buffer.concat(waiting);
  for (let done = 0; done < bytes.length;) {
    try {
      done += writeSync(1, bytes, done);
    } catch (error) {
      if (error.code !== "EAGAIN") throw error;        // a full pipe: try again
    }
  }
  waiting = [];
  held = 0;
  sent = performance.now();
}

function report() {
  const at = colibri.colibri_runner_output() >>> 0;
  const bytes = colibri.colibri_runner_output_bytes() >>> 0;
  if (bytes > 0) waiting.push(Buffer.from(new Uint8Array(memory.buffer, at, bytes)));
  held += bytes;
  if (held > 0 && (held >= SEND_BYTES || performance.now() - sent >= SEND_MS)) send();
}

try {
  let more = colibri.colibri_runner_open(jobAt, jobBytes, blobAt, regionAt) === 0;
  report();
  while (more) {
    const turn = colibri.colibri_runner_turn();
    more = turn !== 0;
    report();
    if (more && (inFlight > 0 || arrived.length > 0)) await deliver(turn === WAITING);
  }
} catch (error) {
  if (error instanceof WebAssembly.RuntimeError) send();
  fail(70, `the module trapped: ${error.message}`);
}
send();
process.exit(colibri.colibri_runner_exit_code());
