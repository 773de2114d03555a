// Jobs of BullMQ: what load.py is for the programs in Python, in one file.
//
//     node bullmq_jobs.js client|worker CONCURRENCY
'use strict';

const fs = require('fs');
const path = require('path');
const readline = require('readline');
const { createRequire } = require('module');
const { Queue, Worker } = createRequire(path.join(process.env.BENCH_PACKAGES, 'package.json'))('bullmq');

const BULK = 1000;
const HANGS_MS = 600_000;
const address = new URL(process.env.BENCH_SERVER);
const connection = { host: address.hostname, port: Number(address.port) };
const now = () => Number(process.hrtime.bigint()); // CLOCK_MONOTONIC, as in Python; exact for 104 days
const pause = (seconds) => new Promise((resolve) => setTimeout(resolve, seconds * 1000));
const jobOf = (number, padding) => ({ number, sent_ns: now(), padding: 'x'.repeat(padding) });

let file = null;
function note(job) {
  const start = Buffer.alloc(32);
  [job.number, job.sent_ns, now(), process.pid].forEach((value, place) => start.writeBigInt64LE(BigInt(value), place * 8));
  if (file === null) file = fs.openSync(process.env.BENCH_STARTS, 'a', 0o600);
  fs.writeSync(file, start);
}

function portions({ first, jobs }, size) {
  const found = [];
  for (let low = first; low < first + jobs; low += size) {
    found.push(Array.from({ length: Math.min(size, first + jobs - low) }, (_, place) => low + place));
  }
  return found;
}

const does = {
  async bulk(queue, told) {
    for (const numbers of portions(told, BULK)) {
      await queue.addBulk(numbers.map((number) => ({ name: 'noop', data: jobOf(number, told.padding) })));
    }
  },
  async single(queue, told) {
    for (const [number] of portions(told, 1)) await queue.add('noop', jobOf(number, told.padding));
  },
  async paced(queue, told) {
    let due = now();
    for (const numbers of portions(told, told.at_once)) {
      await Promise.all(numbers.map((number) => queue.add('noop', jobOf(number, told.padding))));
      due = Math.max(due + told.every_s * 1e9, now());
      await pause((due - now()) / 1e9);
    }
  },
  async hang(queue, told) {
    await queue.add('hang', jobOf(told.first, told.padding));
  },
};

async function obey() {
  const queue = new Queue('bench', { connection });
  await queue.waitUntilReady();
  console.log(JSON.stringify({ ready: true }));
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const told = JSON.parse(line);
    const began = now();
    const before = process.cpuUsage();
    await does[told.do](queue, told);
    const { user, system } = process.cpuUsage(before);
    console.log(JSON.stringify({ s: (now() - began) / 1e9, cpu_s: (user + system) / 1e6 }));
  }
  await queue.close();
}

function work(concurrency) {
  const run = async ({ name, data }) => {
    note(data);
    if (name === 'hang') await pause(HANGS_MS / 1000);
  };
  const worker = new Worker('bench', run, { connection, concurrency });
  worker.on('error', (error) => console.error(error.message));
}

if (process.argv[2] === 'client') obey();
else work(Number(process.argv[3]));
