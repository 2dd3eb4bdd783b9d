// Runs a job (targets/runner/runner.h) in colibri.wasm with node and prints its report.
//   node node_runner.mjs colibri.wasm JOB BLOB
// The exit code is the job's; 64: wrong command line, 66: a file cannot be read, 70: trap, 71: no memory.
import { openSync, fstatSync, readSync, readFileSync, writeSync } from "node:fs";

const PAGE = 65536, CHUNK = 1 << 24, REGION_BYTES_AT = 24;
const round64 = (n) => Math.ceil(n / 64) * 64;

function fail(code, text) {
  process.stderr.write(`node_runner: ${text}\n`);
  process.exit(code);
}

// Read a whole file into the module's memory, without a second copy of it.
function place(path, memory, at, bytes) {
  const file = openSync(path, "r");
  for (let done = 0; done < bytes;) {
    const n = readSync(file, new Uint8Array(memory.buffer, at + done, Math.min(CHUNK, bytes - done)));
    if (n === 0) fail(66, `${path} ends early`);
    done += n;
  }
}

const [modulePath, jobPath, blobPath] = process.argv.slice(2);
if (blobPath === undefined) fail(64, "usage: node node_runner.mjs colibri.wasm JOB BLOB");

let module, jobBytes, blobBytes, regionBytes;
try {
  module = new WebAssembly.Module(readFileSync(modulePath));
  const job = readFileSync(jobPath);
  jobBytes = job.length;
  regionBytes = Number(job.readBigUInt64LE(REGION_BYTES_AT));
  blobBytes = fstatSync(openSync(blobPath, "r")).size;
} catch (error) {
  fail(66, error.message);
}

// The module's own data ends at __heap_base, known once it is instantiated; a first instance tells.
const small = new WebAssembly.Memory({ initial: 64 });
const heap = new WebAssembly.Instance(module, { env: { memory: small } }).exports.__heap_base.value;
const jobAt = round64(heap), blobAt = round64(jobAt + jobBytes), regionAt = round64(blobAt + blobBytes);
let memory;
try {
  memory = new WebAssembly.Memory({ initial: Math.ceil((regionAt + regionBytes) / PAGE) });
} catch (error) {
  fail(71, `no memory of ${regionAt + regionBytes} bytes: ${error.message}`);
}
const colibri = new WebAssembly.Instance(module, { env: { memory } }).exports;
place(jobPath, memory, jobAt, jobBytes);
place(blobPath, memory, blobAt, blobBytes);

function report() {
  const at = colibri.colibri_runner_output() >>> 0;
  const bytes = colibri.colibri_runner_output_bytes() >>> 0;
  for (let sent = 0; sent < bytes;) {
    try {
      sent += writeSync(1, new Uint8Array(memory.buffer, at + sent, bytes - sent));
    } catch (error) {
      if (error.code !== "EAGAIN") throw error;        // a full pipe: try again
    }
  }
}

try {
  let more = colibri.colibri_runner_open(jobAt, jobBytes, blobAt, regionAt) === 0;
  report();
  while (more) {
    more = colibri.colibri_runner_turn() === 1;
    report();
  }
} catch (error) {
  fail(70, `the module trapped: ${error.message}`);
}
process.exit(colibri.colibri_runner_exit_code());
